"""Operators that TVM's importer lacks, written in operators that it has."""
