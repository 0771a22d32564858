"""Counters of transfers, from each process to the scheduler and from there to people.

Entry points: `counters` reads the native module; `heartbeat.install` adds a report to a worker's
heartbeats; `account.install` keeps reports on a scheduler (`ledger`, `link_estimates`);
`transfers`, `link_table` and `lanes` answer a client; `dashboard` and `prometheus` show the same.

Threads: the event loop of the worker or of the scheduler. `transfers`, `links` and `lanes` ask the
scheduler or the workers through the client that is given.

Locks: none in Python.

Invariants: a message is counted once, by its receiver. A report has running totals, so that a lost
or repeated heartbeat changes nothing. Numbers of peers in reports, ledgers and metrics are bounded.
"""
