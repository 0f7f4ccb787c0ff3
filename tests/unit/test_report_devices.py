"""`ullage devices` as a document and as text, from readings made up here."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from ullage.accounting.snapshot import snapshot
from ullage.devices.base import Device, MemoryParts, Pressure, Reading
from ullage.report.devices import DevicesReport, device_report
from ullage.report.json import document, json_schema
from ullage.report.text import columns, devices_text
from ullage.units import GIB

HOST = Device(platform="host", index=0, name="A processor")
MEMINFO = Reading(
    source="meminfo",
    scope="host",
    total_bytes=16 * GIB,
    used_bytes=6 * GIB,
    free_bytes=10 * GIB,
    parts=MemoryParts(
        anon_bytes=5 * GIB,
        shmem_bytes=0,
        available_bytes=10 * GIB,
        swap_total_bytes=2 * GIB,
        swap_free_bytes=GIB,
    ),
    pressure=Pressure(some_percent=1.5, full_percent=0.25),
)
GROUP = Reading(
    source="cgroup2:/job",
    scope="group",
    total_bytes=4 * GIB,
    used_bytes=1 * GIB,
    parts=MemoryParts(anon_bytes=GIB // 2, shmem_bytes=0),
)
UNLIMITED = Reading(source="cgroup2:/", scope="group", used_bytes=6 * GIB)


def report(*readings: Reading) -> DevicesReport:
    moment = snapshot(readings=readings, processes=(), taken_at_s=1.0)
    return DevicesReport(taken_at_s=1.0, devices=(device_report(HOST, moment),))


def test_the_tightest_source_binds_and_the_others_stay_in_sight():
    (device,) = report(MEMINFO, GROUP, UNLIMITED).devices
    assert [(each.reading.source, each.binds) for each in device.sources] == [
        ("meminfo", False),
        ("cgroup2:/job", True),
        ("cgroup2:/", False),
    ]
    assert (device.total_bytes, device.available_bytes) == (4 * GIB, 3 * GIB)


def test_what_is_not_known_is_null_in_the_document_and_never_zero():
    parsed = json.loads(document(report(MEMINFO, UNLIMITED)))
    unlimited = parsed["devices"][0]["sources"][1]
    assert unlimited["available_bytes"] is None
    assert unlimited["reading"]["total_bytes"] is None
    assert unlimited["reading"]["parts"]["anon_bytes"] is None


def test_text_says_which_source_binds_and_what_has_no_limit():
    text = devices_text(report(MEMINFO, GROUP, UNLIMITED))
    lines = {
        line.split()[-1]: line for line in text.splitlines() if "limit" in line or "binds" in line
    }
    assert lines["cgroup2:/job"].endswith("3.00 GiB  binds  cgroup2:/job")
    assert lines["cgroup2:/"].count("no limit") == 2
    assert "3.00 GiB can still be taken, of 4.00 GiB (cgroup2:/job)" in text


def test_text_tells_swap_and_pressure_apart_from_what_can_be_taken():
    text = devices_text(report(MEMINFO, GROUP))
    assert "swap, never counted           1.00 GiB free of 2.00 GiB  meminfo" in text
    assert "waited for memory, last 10 s  some 1.50 %, all 0.25 %    meminfo" in text
    assert "swap" not in devices_text(report(GROUP))
    assert "waited" not in devices_text(report(GROUP))


def test_text_says_unknown_and_not_unlimited_where_nodes_cannot_be_read():
    nodes = Reading(source="NUMA nodes 1", scope="nodes")
    (line,) = (each for each in devices_text(report(MEMINFO, nodes)).splitlines() if "NUMA" in each)
    assert line.split() == ["unknown", "unknown", "unknown", "NUMA", "nodes", "1"]


def test_the_document_has_scope_pressure_and_swap_of_each_reading():
    (device,) = json.loads(document(report(MEMINFO, GROUP)))["devices"]
    meminfo, group = (source["reading"] for source in device["sources"])
    assert (meminfo["scope"], group["scope"]) == ("host", "group")
    assert meminfo["pressure"] == {"some_percent": 1.5, "full_percent": 0.25}
    assert group["pressure"] is None
    assert meminfo["parts"]["swap_total_bytes"] == 2 * GIB


def test_the_document_follows_its_schema():
    schema = json_schema(DevicesReport)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(document(report(MEMINFO, GROUP, UNLIMITED))), schema)


def test_the_command_s_document_of_this_machine_adds_up_to_the_byte():
    command = [sys.executable, "-m", "ullage", "devices", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    parsed = json.loads(result.stdout)
    jsonschema.validate(parsed, json_schema(DevicesReport))
    for device in parsed["devices"]:
        ledger = device["ledger"]
        known = sum(line["size_bytes"] or 0 for line in ledger["lines"])
        assert known + ledger["residual_bytes"] == ledger["total_bytes"] == device["total_bytes"]
        bounds = [each["available_bytes"] for each in device["sources"]]
        assert device["available_bytes"] == min(each for each in bounds if each is not None)


def test_the_command_names_a_process_that_is_not_there():
    command = [sys.executable, "-m", "ullage", "devices", "--pid", "999999999"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "ullage: There is no process 999999999. Name one that runs.\n"


CELLS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1))
def test_columns_keep_every_cell_whole_and_aligned(rows: list[tuple[str, str]]):
    lines = list(columns(rows, sides="<>"))
    assert [tuple(line.split()) for line in lines] == rows
    assert len({len(line) for line in lines}) == 1
