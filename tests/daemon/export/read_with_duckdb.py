"""read_with_duckdb.py DATABASE: what DuckDB answers to the queries on standard input (a JSON list), as JSON.

Its extension for SQLite comes from a package of PyPI, because DuckDB would fetch it from a server of its own.
"""
import glob
import json
import os
import sys

import duckdb
import duckdb_extension_sqlite_scanner as extension

db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
path, = glob.glob(os.path.join(os.path.dirname(extension.__file__), "**", "*.duckdb_extension"), recursive=True)
db.execute(f"LOAD '{path}'")
db.execute(f"ATTACH '{sys.argv[1]}' AS job (TYPE sqlite, READ_ONLY)")
db.execute("USE job")
print(json.dumps([db.execute(query).fetchall() for query in json.load(sys.stdin)], default=float))
