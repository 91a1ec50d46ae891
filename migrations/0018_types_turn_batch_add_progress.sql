-- A turn reports the progress of its runs. The type changes together with the functions that make it. No table uses it: no lock on a
-- table. Landed: durable._turn_batch has the attribute progress.

alter type durable._turn_batch add attribute progress durable._progress_report[];
comment on type durable._turn_batch is
  'The reports of one turn, and properties of all of them. The cost of a turn is mainly the number of its statements, and most statements are for cases that most turns do not have. has_several: some report is more than a single outcome. has_unknown: some report names no run, or an ending that this schema does not know. endings: that of each report, null for none. settles: promises that may be settled. writes_side_rows: a report may write side rows of its own run (it receives, takes or continues). adopts: promises of others to wait for. progress: what runs have set.';
