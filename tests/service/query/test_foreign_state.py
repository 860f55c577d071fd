"""Two services with one changelog, or one state folder: the second is refused, and the first's state stays."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from samovar.common.errors import Refused
from tests.support.small_service import Service, make, many, restored, run, wipe

SHARED = "changelog: s-changelog\njournal: s-journal\nstate: other\n"


def other_service(service: Service, more: str) -> Service:
    """Another service over the same log and inputs."""
    config = service.config.with_name("other.yml")
    config.write_text(service.config.read_text().replace("service: s\n", "service: other\n") + more)
    return Service(config, service.clock)


def refused_start(service: Service) -> Refused:
    with pytest.raises(Refused) as refused, service.container():
        pass
    return refused.value


def test_another_services_changelog_is_refused_before_any_of_it_is_taken(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process(many(100))
    before = service.digests()
    ends = [service.changelog_end(partition) for partition in (0, 1)]
    other = other_service(service, SHARED)
    refused = refused_start(other)
    assert refused.code == "changelog-foreign"
    assert "`s`" in refused.what
    assert "`other`" in refused.what
    assert [service.changelog_end(partition) for partition in (0, 1)] == ends
    for options in (("--from", "changelog"), ("--from", "source")):
        done = run("restore", other.config, *options)
        assert (done.exit_code, done.stderr.split(":")[0]) == (2, "changelog-foreign"), (options, done.output)
    assert service.digests() == before
    other_service(service, "state: other\n").process(
        []
    )  # with topics of its own: nothing foreign was left in its folder


def test_another_services_state_folder_is_refused(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process(many(100))
    before = service.digests()
    refused = refused_start(other_service(service, ""))
    assert refused.code == "changelog-foreign"
    assert str(service.state) in refused.what
    assert service.digests() == before
    service.process(many(5, start_s=1_000))


def test_a_service_goes_on_with_its_own(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.process(many(100), snapshot=True)
    before = service.digests()
    wipe(service)
    restored(service)
    assert service.digests() == before
    shutil.rmtree(service.state)
    service.process([])
    assert service.digests() == before
