"""What the geometry of capsule subspaces is good for, measured on real data: one module for each question.

Each has `run(data, folder, report, cache=...)`, whose result is ready for JSON, and `table`, that result as a table.
`data` is a dataset of ten classes by name or path, `"digits"` a quick version; `report` is told how far it is; `cache`
is the folder of downloaded datasets. Networks are trained below `folder` and reused: after an interruption, the same
call resumes.
"""
