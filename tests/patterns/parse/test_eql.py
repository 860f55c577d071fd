"""Sequences as detection engineers know them from EQL parse as they are."""

from __future__ import annotations

import pytest

from samovar.patterns.syntax.tree import Field, SequenceForm, StepKind
from tests.support.conformance_cases import load, sound

SEQUENCES = {
    "two events of a user": """\
sequence by user.name with maxspan=5m
  [ process where process.name == "rundll32.exe" ]
  [ network where destination.port == 443 ]""",
    "keys with other names": """\
sequence with maxspan=1h
  [ file where file.extension == "exe" and file.path : "C:\\\\Users\\\\*" ] by file.name
  [ process where event.type == "start" ] by process.executable""",
    "several keys": """\
sequence by host.id, user.id with maxspan=30s
  [authentication where event.outcome == "failure"]
  [authentication where event.outcome == "success"]""",
    "keys of both kinds": """\
sequence by user.id with maxspan=15m
  [process where true] by process.pid_owner
  [network where true] by network.owner""",
    "until": """\
sequence by process.entity_id with maxspan=2h
  [process where event.type == "start" and process.name : ("cmd.exe", "powershell.exe")]
  [file where event.action == "creation" and file.name like "*.dll"]
until [process where event.type == "end"]""",
    "runs": """\
sequence by source.ip, user.name with maxspan=10s
  [authentication where event.outcome == "failure"] with runs=5
  [authentication where event.outcome == "success"]""",
    "a missing event": """\
sequence by host.name with maxspan=1m
  [ library where dll.name like~ "evil*" ]
  ![ process where process.name in ("av.exe", "edr.exe") ]
  [ network where destination.port == 443 or destination.port == 8443 ]""",
    "a missing event at the end": """\
sequence by service.name with maxspan=10m
  [ service where event.action == "stopped" ]
  ![ service where event.action == "started" ]""",
    "any": """\
sequence by host.id with maxspan=1d
  [ any where event.category == "malware" ]
  [ any where true ]""",
    "comments": """\
// lateral movement
sequence by host.id with maxspan=1m /* short */
  [process where process.name : "psexec*"] // the tool
  [network where /* any port */ true]""",
    "case-insensitive operators": """\
sequence by user.id with maxspan=3h
  [process where process.name in~ ("CMD.EXE", "PowerShell.exe") and not process.parent.name : "explorer.exe"]
  [registry where registry.path regex~ \"\"\"hklm\\\\software\\\\.*\\\\run\"\"\" or x regex ("a+", "b+")]""",
    "functions": """\
sequence by host.id with maxspan=5m
  [process where startsWith(process.name, "svc") and endsWith~(process.executable, ".EXE")]
  [network where cidrMatch(destination.ip, "10.0.0.0/8", "192.168.0.0/16") and stringContains(dns.question.name, "x")]
  [file where indexOf(file.path, "Temp") != null and between(file.path, "C:", ".exe") != ""]
  [file where substring(file.name, 0, 3) == "abc" and length(process.args) > 3]
  [file where concat(file.name, ".", file.extension) == "a.b" and number(file.size) > 10]
  [file where add(x, 1) == modulo(y, 2)]""",
    "optional fields and backticks": """\
sequence by ?user.id with maxspan=1h
  [process where ?process.code_signature.trusted == false and `my-field` == 1]
  [network where not ?process.hash.md5 == null and process.`odd name` != "x"]""",
    "not in": """\
sequence by user.id with maxspan=1h
  [process where process.name not in ("a.exe", "b.exe") and (process.pid > 100 or process.pid == 4)]
  [process where not (process.name == "a" and process.args_count >= 2)]""",
    "quoted category": """\
sequence with maxspan=1h
  ["my category" where true] by user.id
  [my-type.v2 where true] by user.id""",
    "raw strings": '''\
sequence by host.id with maxspan=1m
  [process where process.command_line == """reg add "HKLM\\Software" /v x"""]
  [process where process.executable : """C:\\Windows\\*\\cmd.exe"""]''',
    "arithmetic": """\
sequence by user.id with maxspan=1m
  [network where (source.bytes + destination.bytes) / 2 > 1000 and source.bytes % 2 == 0 and -1 < source.port]
  [network where source.bytes * 2 >= destination.bytes - 10]""",
    "spaces around the option": """\
sequence by user.id with maxspan = 30s
  [ process where true ] with runs = 3
  [ network where true ]""",
}  # fmt: skip


@pytest.mark.parametrize("text", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_a_sequence_of_eql_parses(text: str) -> None:
    rule = sound(text)
    assert isinstance(rule.form, SequenceForm)
    assert len(rule.form.steps) >= 2


def test_keys_and_missing_events_mean_the_same() -> None:
    form = sound(SEQUENCES["keys with other names"]).form
    assert isinstance(form, SequenceForm)
    assert [key.name for key in form.by] == ["file.name"]
    assert [step.brackets[0].by[0].value for step in form.steps if step.brackets[0].by] == [
        Field("file.name"),
        Field("process.executable"),
    ]
    form = sound(SEQUENCES["a missing event"]).form
    assert isinstance(form, SequenceForm)
    assert [step.kind for step in form.steps] == [StepKind.TAKE, StepKind.ABSENT, StepKind.TAKE]


@pytest.mark.parametrize("pipe", ["| head 5", "| tail 3", "| filter x == 1", "| unique user.id", "|"])
def test_pipes_get_a_hint(pipe: str) -> None:
    (finding,) = load(SEQUENCES["two events of a user"] + "\n" + pipe).findings
    assert finding.level == "error"
    assert finding.hint is not None
    assert "pipes" in finding.hint


@pytest.mark.parametrize("query", ["sample by host [a where true] [b where true]", 'process where name == "x"'])
def test_other_queries_get_a_hint(query: str) -> None:
    findings = load(query).findings
    assert findings[0].hint is not None
    assert "sequence" in findings[0].hint
