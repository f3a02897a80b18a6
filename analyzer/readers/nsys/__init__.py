"""Reports of Nsight Systems: SQLite, folders of tables, .nsys-rep."""
