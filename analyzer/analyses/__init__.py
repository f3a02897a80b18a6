"""Analyses: tables in, one small table out. They print nothing, open nothing and know no tool.

An analysis is a module named for its table, with the declaration ``TABLE`` and a function of the same name that
takes a :class:`kanalyze.report.Report` and gives that table as a polars frame; adding the file adds the table, in
the command line too. Modules that begin with an underscore are what several analyses share.

Three outcomes: a table; an empty table (looked, and there is nothing); or :class:`kanalyze.errors.CannotTellError`
(the report does not hold what the answer needs).
"""
