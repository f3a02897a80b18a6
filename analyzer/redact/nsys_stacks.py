"""Python stacks of nsys, which are payloads of NVTX marks: kept alone, with the texts that they refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze import python_stacks

if TYPE_CHECKING:
    import sqlite3

    from kanalyze.redact.nsys_known import How

_NVTX: Final = "NVTX_EVENTS"

#: Process of a globalTid, by its lowest bit and mask.
_PROCESS: Final = 24
_PROCESSES: Final = (1 << _PROCESS) - 1


class PythonStacks:
    """Stacks of one export.

    Attributes:
        used: StringIds that the stacks kept so far refer to, with the rule for each.
    """

    def __init__(self, database: sqlite3.Connection, columns: set[str]) -> None:
        """Look for nsys' domains of Python stacks in the attached `source`, whose events have these `columns`."""
        self.used: dict[int, How] = {}
        self._domains: set[tuple[int, int]] = set()
        if columns >= {"text", "globalTid", "domainId", "eventType", "binaryData"}:
            names = ", ".join(f"'{name}'" for name in python_stacks.DOMAINS)
            sql = f"SELECT globalTid, domainId FROM source.{_NVTX} WHERE eventType = ? AND text IN ({names})"
            self._domains = {
                (thread >> _PROCESS & _PROCESSES, domain)
                for thread, domain in database.execute(sql, (python_stacks.DOMAIN,))
                if isinstance(thread, int) and isinstance(domain, int)
            }
        database.create_function("python_stack", 3, self._kept)

    def expression(self, table: str, column: str) -> str | None:
        """SQL for the payload of a row if it is a stack, else null; None for columns that hold none."""
        if not self._domains or (table, column) != (_NVTX, "binaryData"):
            return None
        return (
            f"CASE WHEN eventType = {python_stacks.MARK} AND {column} IS NOT NULL "
            f"THEN python_stack(globalTid, domainId, {column}) END"
        )

    def _kept(self, thread: object, domain: object, payload: object) -> bytes | None:
        data = payload.encode() if isinstance(payload, str) else payload
        if not (isinstance(thread, int) and isinstance(domain, int) and isinstance(data, bytes)):
            return None
        if (thread >> _PROCESS & _PROCESSES, domain) not in self._domains:
            return None
        stack = python_stacks.unpacked(data)
        if stack is None:
            return None
        for function, file, _ in stack.frames:
            self.used.setdefault(function, "name")
            self.used[file] = "module"
        return python_stacks.packed(stack)
