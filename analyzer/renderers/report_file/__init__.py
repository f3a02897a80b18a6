"""HTML: a report as one file with sortable tables and a timeline, without network; pages and tables in notebooks."""
