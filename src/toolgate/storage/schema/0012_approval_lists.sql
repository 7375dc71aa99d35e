-- Lists, and the search for approvals that no longer hold, read indexes alone: arguments may have a megabyte each.

DROP INDEX approvals_by_tool;
DROP INDEX approvals_by_state;
CREATE INDEX approvals_by_tool ON approvals (caller, tool, state, source, spec, policy, id);
CREATE INDEX approvals_by_state ON approvals (state, expires, created, id, caller, tool, run);
CREATE INDEX approvals_by_caller ON approvals (caller, created, id, state, tool, run);
