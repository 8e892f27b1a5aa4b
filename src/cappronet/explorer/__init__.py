"""A finished run -> what each class subspace has learned: as arrays, as a CSV file, as one self-contained HTML page."""

from cappronet.explorer.page import write_page
from cappronet.explorer.table import CapsuleTable, capsule_table, write_csv

__all__ = ["CapsuleTable", "capsule_table", "write_csv", "write_page"]
