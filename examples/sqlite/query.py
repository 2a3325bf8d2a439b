"""Fill a database, or time a query on it, under the pragmas that stand in the environment."""

import os
import sqlite3
import sys
import time

ROWS = 20_000


def fill(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA page_size = {os.environ['AUTOTUNE_page_size']}")
    connection.execute("CREATE TABLE sales (id INTEGER PRIMARY KEY, shop INTEGER, amount INTEGER, note TEXT)")
    rows = ((i % 97, i * 7919 % 1000, f"sale {i}") for i in range(ROWS))
    connection.executemany("INSERT INTO sales (shop, amount, note) VALUES (?, ?, ?)", rows)
    if os.environ["AUTOTUNE_index"] == "true":
        connection.execute("CREATE INDEX by_shop ON sales (shop, amount)")
    connection.commit()


def query(connection: sqlite3.Connection) -> None:
    for pragma in ("cache_size", "temp_store", "mmap_size"):
        connection.execute(f"PRAGMA {pragma} = {os.environ['AUTOTUNE_' + pragma]}")
    began = time.perf_counter()
    rows = connection.execute("SELECT shop, sum(amount), count(*) FROM sales GROUP BY shop ORDER BY 2").fetchall()
    seconds = time.perf_counter() - began
    print(len(rows), sum(row[1] for row in rows))
    print(f"{1 / seconds:.2f}")


database = sqlite3.connect("sales.db")
{"fill": fill, "query": query}[sys.argv[1]](database)
database.close()
