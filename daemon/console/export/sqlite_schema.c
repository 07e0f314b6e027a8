/*
 * sqlite_schema.c: the tables and views of `rollcall export --sqlite`. docs/EXPORT.md says what each column is, and a
 * test compares the two.
 *
 * Calls hold numbers where many rows would repeat a word, and small tables say what they mean: a call takes about 60
 * bytes. The views join them, and are what people ask. They are written in the words that SQLite and DuckDB share.
 */
#include "daemon/console/export/sqlite.h"

const char roll_sqlite_tables[] =
    "CREATE TABLE about(name TEXT PRIMARY KEY, value TEXT);"
    "CREATE TABLE runs(run INTEGER PRIMARY KEY, job TEXT, restart INTEGER);"
    "CREATE TABLE ranks(process INTEGER PRIMARY KEY, run INTEGER, rank INTEGER, local_rank INTEGER, host TEXT,"
    " pid INTEGER, exe TEXT, state TEXT, exit_code INTEGER, exit_signal INTEGER, calls INTEGER, lost INTEGER, "
    "pending INTEGER,"
    " last_ns INTEGER, step INTEGER);"
    "CREATE TABLE communicators(comm INTEGER PRIMARY KEY, run INTEGER, key TEXT, name TEXT, label TEXT, role TEXT,"
    " size INTEGER, ranks TEXT, made_by TEXT, made_at TEXT, parent_key TEXT);"
    "CREATE TABLE members(comm INTEGER, process INTEGER, member INTEGER);"
    "CREATE TABLE callsites(process INTEGER, callsite INTEGER, place TEXT, source TEXT, frames TEXT,"
    " PRIMARY KEY(process, callsite));"
    "CREATE TABLE calls(call INTEGER PRIMARY KEY, process INTEGER, ticket INTEGER, comm INTEGER, seq INTEGER,"
    " op INTEGER, count INTEGER, dtype INTEGER, redop INTEGER, peer INTEGER, bytes INTEGER, begin_ns INTEGER,"
    " took_ns INTEGER, state INTEGER, result INTEGER, step INTEGER, microbatch INTEGER, layer INTEGER, phase INTEGER,"
    " stream INTEGER, thread INTEGER, callsite INTEGER, nccl_group INTEGER, flags INTEGER);"
    "CREATE TABLE verdicts(verdict INTEGER PRIMARY KEY, run INTEGER, number INTEGER, code TEXT, certainty TEXT,"
    " stands INTEGER, ended_by INTEGER, said_ns INTEGER, event_ns INTEGER, comm INTEGER, seq INTEGER, field TEXT,"
    " step INTEGER, layer INTEGER, culprits TEXT, waiting TEXT, text TEXT, json TEXT);"
    "CREATE TABLE verdict_ranks(verdict INTEGER, role TEXT, rank INTEGER);"
    "CREATE TABLE ops(op INTEGER PRIMARY KEY, name TEXT, class TEXT);"
    "CREATE TABLE dtypes(dtype INTEGER PRIMARY KEY, name TEXT, bytes INTEGER);"
    "CREATE TABLE redops(redop INTEGER PRIMARY KEY, name TEXT);"
    "CREATE TABLE phases(phase INTEGER PRIMARY KEY, name TEXT);"
    "CREATE TABLE states(state INTEGER PRIMARY KEY, name TEXT);"
    "CREATE TABLE results(result INTEGER PRIMARY KEY, name TEXT);";

const char roll_sqlite_views[] =
    "CREATE INDEX calls_by_operation ON calls(comm, seq);"
    "CREATE INDEX members_by_process ON members(process, comm);"
    "CREATE INDEX members_by_number ON members(comm, member);"
    /* every call, in words */
    "CREATE VIEW call_list AS SELECT c.call AS call, r.run AS run, r.rank AS rank, r.host AS host,"
    " k.name AS communicator, c.comm AS comm, c.seq AS seq, o.name AS op, o.class AS class, c.count AS count,"
    " d.name AS dtype, e.name AS redop, c.peer AS peer, c.bytes AS bytes, c.begin_ns AS begin_ns,"
    " c.took_ns AS took_ns, s.name AS state, t.name AS result, c.step AS step, c.layer AS layer, p.name AS phase,"
    " w.place AS place, c.process AS process, c.ticket AS ticket, c.flags AS flags"
    " FROM calls AS c JOIN ranks AS r ON r.process = c.process JOIN ops AS o ON o.op = c.op"
    " LEFT JOIN communicators AS k ON k.comm = c.comm LEFT JOIN dtypes AS d ON d.dtype = c.dtype"
    " LEFT JOIN redops AS e ON e.redop = c.redop LEFT JOIN states AS s ON s.state = c.state"
    " LEFT JOIN results AS t ON t.result = c.result LEFT JOIN phases AS p ON p.phase = c.phase"
    " LEFT JOIN callsites AS w ON w.process = c.process AND w.callsite = c.callsite;"
    /* one row for each collective that runs: not the captured ones, those of no elements, and those that were refused
     */
    "CREATE VIEW collectives AS SELECT c.comm AS comm, k.name AS communicator, c.seq AS seq, MIN(o.name) AS op,"
    " MAX(o.name) AS other_op, COUNT(DISTINCT c.process) AS arrived, k.size - COUNT(DISTINCT c.process) AS missing, "
    "MIN(c.begin_ns) AS first_ns,"
    " MAX(c.begin_ns) AS last_ns, MAX(c.begin_ns) - MIN(c.begin_ns) AS spread_ns, MIN(c.bytes) AS least_bytes,"
    " MAX(c.bytes) AS most_bytes FROM calls AS c JOIN ops AS o ON o.op = c.op"
    " JOIN communicators AS k ON k.comm = c.comm WHERE o.class = 'collective' AND c.count <> 0 AND"
    " (c.flags & 1) = 0 AND (c.result IS NULL OR c.result = 0) AND o.name <> 'GraphLaunch'"
    " GROUP BY c.comm, k.name, k.size, c.seq;"
    /* the two ends of each message; an end that was not recorded is NULL */
    "CREATE VIEW messages AS SELECT s.comm AS comm, s.seq AS seq, ms.member AS source, s.peer AS destination,"
    " s.call AS send, v.call AS receive, s.bytes AS sent_bytes, v.bytes AS received_bytes, s.begin_ns AS sent_ns,"
    " v.begin_ns AS received_ns FROM calls AS s JOIN ops AS o ON o.op = s.op AND o.name = 'Send'"
    " JOIN members AS ms ON ms.process = s.process AND ms.comm = s.comm"
    " LEFT JOIN members AS md ON md.comm = s.comm AND md.member = s.peer"
    " LEFT JOIN calls AS v ON v.comm = s.comm AND v.seq = s.seq AND v.process = md.process AND v.peer = ms.member"
    " AND v.op = (SELECT q.op FROM ops AS q WHERE q.name = 'Recv') AND (v.flags & 33) = (s.flags & 33)"
    " AND (v.result IS NULL OR v.result = 0) WHERE s.result IS NULL OR s.result = 0;"
    /* calls in which a host is now, or was when the trace ended */
    "CREATE VIEW inside AS SELECT * FROM call_list WHERE state = 'entered';"
    /* the newest call of each process that is about a communicator */
    "CREATE VIEW last_calls AS SELECT l.* FROM call_list AS l JOIN (SELECT process, MAX(call) AS call FROM calls"
    " WHERE comm IS NOT NULL GROUP BY process) AS m ON m.call = l.call;"
    "CREATE VIEW findings AS SELECT * FROM verdicts WHERE stands = 1;";
