"""Columnar access to tables in an SQLite file or in a folder, whatever tool wrote them."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from kanalyze.readers.storage.sqlite_file import SqliteFile
    from kanalyze.readers.storage.table_folder import TableFolder

    #: Tables in row order, of either kind; a missing table is empty, a missing column null.
    TableFile: TypeAlias = SqliteFile | TableFolder
