"""The report of jobs: what they achieved and where their time went, as a table, a web page, CSV or JSON."""
