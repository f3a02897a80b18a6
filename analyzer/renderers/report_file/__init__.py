"""The report as one HTML file: the page, sortable tables and a timeline, which opens anywhere without network."""
