"""What is read ahead is what every page reads."""

from kanalyze.model import DEVICE_KINDS
from kanalyze.readers.nsys.events import EVENT_RECORDS, EVENT_TABLES
from kanalyze.readers.nsys.reading_ahead import TRACED


def test_tables_of_what_was_traced_are_read_ahead():
    wanted = {*DEVICE_KINDS, "api", "sync", "range"}
    tables = {spec.table for spec in EVENT_TABLES if spec.kind in wanted} | {EVENT_RECORDS}
    assert {table for table in tables if not table.startswith(TRACED)} == set()
