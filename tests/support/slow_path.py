"""The critical path, said a second time: one step back after the other, each by looking at all events.

Written from docs/whatif.md, "The critical path". What calls may have blocked on, and the events for which streams
waited, are those of the tables that tests hold by themselves.
"""

from kanalyze.analyses.communication._recorded import last_arrivals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.host._call_kinds import unseen_syncs
from kanalyze.analyses.replay._graph import dependencies
from kanalyze.analyses.replay._network import host_line
from kanalyze.analyses.streams.concurrency import used_streams


class SlowPath:
    def __init__(self, report):
        graph = dependencies(report)
        self.work = graph.operations.hstack(operations(report).select("bucket")).with_row_index("row").rows(named=True)
        self.calls = graph.calls.with_row_index("row").rows(named=True)
        line, self.behind = host_line(report, graph), {}
        for place, row in line.waits.iter_rows():  # the last of those that ended while it blocked
            call, ended = line.calls["row"][place], self.work[row]["end"]
            if ended > self.calls[call]["start"]:
                self.behind[call] = max(self.behind.get(call, (0, 0)), (ended, -row))
        self.outer = [call for call in self.calls if call["outer"] == call["row"]]
        self.unseen = set(unseen_syncs(report))
        self.late = {row["row"]: row for row in last_arrivals(report).rows(named=True)}
        self.types = {row["number"]: (row["group"], row["type"]) for row in used_streams(report).rows(named=True)}
        self.names = report.kind("api")["name"].to_list()

    def pieces(self, first, low, high):
        """The pieces between `low` and `high`, the latest first: start, end, cause, and what it is of."""
        found, at, t, seen = [], first, high, set()
        while at is not None and t > low:
            if at in seen:
                break
            seen.add(at)
            steps, at = self.step(at)
            for begin, cause, of in steps:
                until = max(min(begin, t), low)
                if until < t:
                    found.append((until, t, cause, of))
                t = until
        if t > low:
            of = found[-1][3] if at is None and found else None
            found.append((low, t, "host" if at is None and of and of[0] == "call" else "unknown", of))
        return found

    def step(self, at):
        """The pieces of a thing, each by the time at which it begins, and what is before it."""
        what, row = at
        if what == "operation":
            return self.operation(self.work[row])
        call = self.calls[row]
        if what == "end":
            if row in self.behind:
                behind = self.work[-self.behind[row][1]]
                return [(behind["end"], "return of a wait", ("call", row))], ("operation", behind["row"])
            cause = "unknown" if row in self.unseen else "launch" if call["kind"] == "launch" else "call"
            return [(call["start"], cause, ("call", row))], ("begin", row)
        before = self.before(call)
        if before is None:
            return [(-(10**18), "host", ("call", row))], None
        return [(before["end"], "host", ("call", row))], ("end", before["row"])

    def before(self, call):
        """The call of the process that ended last before this one began; of equals the longest, then the first."""
        ended = [
            other
            for other in self.outer
            if other["process_id"] == call["process_id"]
            and other["end"] <= call["start"]
            and (other["end"], -other["start"], -other["row"]) < (call["end"], -call["start"], -call["row"])
        ]
        return max(ended, key=lambda one: (one["end"], -one["start"], -one["row"]), default=None)

    def operation(self, one):
        """An operation: it ran, and before that it waited for what released it last."""
        of, late = ("operation", one["row"]), self.late.get(one["row"])
        cause = "transfer" if late and late["sized"] else one["bucket"]
        if late and late["late"] != one["row"]:
            return [(late["arrival"], cause, of)], ("operation", late["late"])
        ran, edges = (one["start"], cause, of), []
        for rank, (name, why) in enumerate(
            (("stream", "stream order"), ("graph_before", "graph order"), ("event_before", "event wait"))
        ):
            other = self.in_stream(one) if name == "stream" else one[name] is not None and self.work[one[name]]
            if other:
                release = other["end"] if other["end"] <= one["start"] else other["start"]
                edges.append((release, -rank, min(other["end"], one["start"]), why, ("operation", other["row"])))
        call = None if one["call"] is None else self.calls[one["call"]]
        if call:
            early = call["end"] > one["start"] or call["end"] >= one["end"]
            release = min(call["start"] if early else call["end"], one["start"])
            inside = call["end"] > release
            why = "launch" if inside else "launch latency"
            edges.append((release, -9, release, why, ("begin" if inside else "end", call["row"])))
        if not edges:
            return [ran, (-(10**18), "unknown", of)], None
        _, _, leave, why, following = max(edges)
        if call is None and why != "event wait":
            why = "unknown"
        return [ran, (leave, why, of)], following

    def in_stream(self, one):
        """What is before an operation in its stream, and in those that wait for it and for which it waits."""
        if one["stream"] is None:
            return None
        key = (one["start"], one["end"], one["row"])
        group, kind = self.types[one["stream"]]
        own = [other for other in self.work if other["stream"] == one["stream"]]
        own = sorted((other["start"], other["end"], other["row"]) for other in own)
        own = [other for other in own if other < key]
        found = self.work[own[-1][2]] if own else None
        reached = max((end for _, end, _ in own), default=0)
        if own and reached <= one["start"]:
            found = self.work[next(row for _, end, row in reversed(own) if end == reached)]
        asked = {"null": "blocking", "blocking": "null"}.get(kind)
        others = [
            (other["end"], -other["row"])
            for other in self.work
            if other["stream"] is not None
            and self.types[other["stream"]] == (group, asked)
            and other["start"] < other["end"] <= one["start"]
        ]
        if asked and others:
            other = self.work[-max(others)[1]]
            if found is None or other["end"] > min(found["end"], one["start"]):
                found = other
        return found

    def first(self, high):
        work = [one for one in self.work if one["stream"] is not None]
        running = [one["row"] for one in work if one["start"] < high <= one["end"]]
        later = [(one["start"], one["row"]) for one in work if one["start"] >= high]
        if running:
            return ("operation", min(running))
        if later:
            return ("operation", min(later)[1])
        used = {one["process_id"] for one in work}
        ended = [(min(one["end"], high), 1, -one["row"]) for one in work]
        calls = [call for call in self.outer if call["start"] < high and call["process_id"] in used]
        ended += [(min(call["end"], high), 0, -call["row"]) for call in calls]
        if not ended:
            return None
        _, device, row = max(ended)
        return ("operation" if device else "end", -row)
