"""What a local Kafka broker is made of: a Java, and the Kafka jars, fetched by name and kept in the user's cache.

$XDG_CACHE_HOME/samovar/kafka/VERSION/*.jar          complete: made elsewhere and renamed
$XDG_CACHE_HOME/samovar/kafka/VERSION/java-*.jsa     classes as a Java version loads them, for a quick start
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from samovar.common.errors import Refused

VERSION = "4.3.1"
# Kafka names no logger of its own: without one, a broker that dies says nothing.
WANTED = (("org.apache.kafka", "kafka_2.13", VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
OLDEST_JAVA = 17
FETCH_S = 900
PROBE_S = 30

Say: TypeAlias = Callable[[str], None]
Name: TypeAlias = tuple[str, str, str]  # of a jar: group, artifact, version

POM = """<project>
<modelVersion>4.0.0</modelVersion><groupId>samovar</groupId><artifactId>broker</artifactId><version>1</version>
<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


@dataclass(frozen=True)
class Java:
    """A Java runtime, and its version as it says itself: 17.0.15."""

    path: str
    version: str


def find_java(whom: str = "a Kafka broker") -> Java:
    """The Java of JAVA_HOME, else of the PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=str(Path(home) / "bin") if home else None) or shutil.which("java")
    if path is None:
        hint = f"Install a Java runtime, version {OLDEST_JAVA} or later, or set JAVA_HOME to one."
        raise Refused("java-missing", f"there is no Java, which {whom} needs", hint)
    try:
        told = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=PROBE_S, check=False)
        output = told.stderr + told.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        output = str(error)
    return Java(path, checked_version(path, output))


def checked_version(path: str, output: str) -> str:
    """The version in what `java -version` prints, where it is recent enough."""
    found = re.search(r'version "([\w.+-]+)"', output)
    hint = f"Install version {OLDEST_JAVA} or later, or set JAVA_HOME to one."
    if found is None:
        raise Refused("java-missing", f"{path} does not say which Java it is", hint, tail(output))
    version = found[1]
    if int(re.split(r"\D", version)[0] or 0) < OLDEST_JAVA:  # Java 8 calls itself 1.8
        raise Refused("java-too-old", f"{path} is Java {version}; Kafka {VERSION} needs {OLDEST_JAVA}", hint)
    return version


def cache_folder(*parts: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "samovar", *parts)


def kafka_jars(java: Java, say: Say) -> list[Path]:
    """The jars of a broker, fetched where they are not there yet."""
    what = f"Kafka {VERSION}"
    try:
        return cached_jars(cache_folder("kafka", VERSION), java, WANTED, say, what)
    except NotFetched as failed:
        raise Refused("kafka-jars-missing", f"{what}: {failed.what}", failed.hint, failed.tried) from None


def cached_jars(folder: Path, java: Java, wanted: Sequence[Name], say: Say, what: str) -> list[Path]:
    """Jars and all that they need, fetched where they are not there yet."""
    if not folder.is_dir():
        say(f"fetching {what} into {folder} (once)")
        fetch(folder, java, wanted)
    jars = sorted(folder.glob("*.jar"))
    if not any(jar.name == f"{wanted[0][1]}-{wanted[0][2]}.jar" for jar in jars):
        raise NotFetched(f"{folder} does not hold it", f"Delete {folder} and try again.")
    return jars


class NotFetched(Exception):
    """Jars could not be fetched, or not kept: what happened, what to do, and what each way of fetching said."""

    def __init__(self, what: str, hint: str, tried: str = "") -> None:
        super().__init__(what)
        self.what, self.hint, self.tried = what, hint, tried


def fetch(folder: Path, java: Java, wanted: Sequence[Name]) -> None:
    """Fetch all jars, with Maven or Ivy. The folder appears when all is there, also where two do this at once."""
    failed = []
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for way in (maven_commands, ivy_commands):
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
                commands = way(Path(scratch), java, wanted)
                if not commands:
                    continue
                said = run_all(commands)
                if said is not None:
                    failed.append(said)
                    continue
                try:
                    (Path(scratch) / "jars").rename(folder)
                except OSError:
                    if not folder.is_dir():  # else another process was first, and its jars are as good
                        raise
                return
    except OSError as error:
        hint = "Set XDG_CACHE_HOME to a folder that can be written."
        raise NotFetched(f"the jars cannot be kept: {error}", hint) from None
    tried = "\n  ".join(failed) or "neither `mvn` nor pyspark (for its Ivy) is installed"
    hint = f"Install Maven or pyspark, see that it can reach its repository, or put the jars into {folder} by hand."
    raise NotFetched("the jars could not be fetched", hint, tried)


def maven_commands(scratch: Path, _java: Java, wanted: Sequence[Name]) -> list[list[str]]:
    maven = shutil.which("mvn")
    if maven is None:
        return []
    pom = scratch / "pom.xml"
    pom.write_text(POM.format(dependencies="".join(DEPENDENCY.format(*name) for name in wanted)), "utf-8")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={scratch / 'jars'}"]
    return [[maven, "--batch-mode", "--quiet", "--file", str(pom), *goal]]


def ivy_commands(scratch: Path, java: Java, wanted: Sequence[Name]) -> list[list[str]]:
    """PySpark ships Ivy as a jar that can be run."""
    spark = importlib.util.find_spec("pyspark")
    folders = spark.submodule_search_locations if spark is not None else None
    found = sorted(jar for folder in folders or () for jar in Path(folder).glob("jars/ivy-*.jar"))
    if not found:
        return []
    ivy = [java.path, "-jar", str(found[-1]), "-warn", "-cache", str(scratch / "ivy"), "-confs", "default"]
    into = ["-types", "jar", "bundle", "-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]
    return [[*ivy, "-dependency", *name, *into] for name in wanted]


def run_all(commands: Sequence[Sequence[str]]) -> str | None:
    """None where all went well, else what the one that failed said."""
    for command in commands:
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        except subprocess.TimeoutExpired:
            return f"{Path(command[0]).name} did not end within {FETCH_S} s"
        if ran.returncode != 0:
            return f"{Path(command[0]).name} failed with code {ran.returncode}: {tail(ran.stdout + ran.stderr)}"
    return None


def tail(text: str, lines: int = 15) -> str:
    """The last lines that say something, set off as a detail."""
    said = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n  ".join(said[-lines:])
