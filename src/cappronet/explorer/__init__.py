"""What each class subspace of a finished run has learned: as arrays, a CSV file or one self-contained HTML page."""

from cappronet.explorer.page import write_page
from cappronet.explorer.table import CapsuleTable, capsule_table, write_csv

__all__ = ["CapsuleTable", "capsule_table", "write_csv", "write_page"]
