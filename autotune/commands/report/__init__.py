"""The report of jobs: what came of them and where their time went, as a table, a web page, CSV or JSON."""
