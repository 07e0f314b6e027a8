/*
 * client.h: a console's connection to a root: finds the root, asks it, receives its verdicts.
 *
 * One thread per client. Waiting happens only inside query and next, never longer than the given time.
 */
#ifndef ROLL_DAEMON_WIRE_CLIENT_H
#define ROLL_DAEMON_WIRE_CLIENT_H

#include <jansson.h>
#include <stddef.h>

typedef struct roll_client roll_client_t;

#define ROLL_CLIENT_TIMEOUT_MS 3000 /* more than a query takes on a loaded head node */

#define ROLL_CLIENT_ENDPOINT_BYTES 256

/*
 * The endpoints of the live roots that this user runs here, by name: roll_client_discover says where they are looked
 * for. Returns how many there are; out holds the first `room` of them.
 */
size_t roll_client_live(char (*out)[ROLL_CLIENT_ENDPOINT_BYTES], size_t room);

/*
 * The endpoint to use: ROLLCALL_DAEMON, else the one live root among the `endpoint` files of DIR and DIR/run-<name>/,
 * DIR being ROLLCALL_DIR or roll_default_dir(). 0; UNREACHABLE when there is none; LIMIT when there are several. On
 * error `why` holds one clear line that says what to do (the list of endpoints, when there are several).
 */
int roll_client_discover(char *endpoint, size_t endpoint_size, char *why, size_t why_size);

/*
 * Connects. endpoint = NULL: roll_client_discover. curve_dir = NULL: ROLLCALL_CURVE_DIR, else no encryption; keys are
 * only used on tcp endpoints. Asks the root once, so that an unreachable one is found here; a relay that is asked
 * instead sends the client on to its root (roll_client_relay); timeout_ms is for all who are asked, one after the
 * other. On error `why` holds one clear line. Errors:
 * UNREACHABLE, LIMIT, ARG (a malformed endpoint), DENIED (keys), NOMEM, IO.
 */
int roll_client_new(const char *endpoint, const char *curve_dir, int timeout_ms, roll_client_t **out, char *why,
                    size_t why_size);
void roll_client_destroy(roll_client_t **client);
/* The relay that was asked first, and sent the client on to its root; NULL: a root was asked. Borrowed. */
const char *roll_client_relay(const roll_client_t *client);
/* The endpoint in use; borrowed. */
const char *roll_client_endpoint(const roll_client_t *client);

/*
 * Sends a query (takes it) and waits for its reply (returned owned). 0 also when the root answers {"error":...}.
 * Errors: TIMEOUT, CORRUPT, IO, NOMEM. Verdicts that are pushed meanwhile are kept for roll_client_next.
 */
int roll_client_query(roll_client_t *client, json_t *query, int timeout_ms, json_t **reply);
/* The next pushed verdict, returned owned, after a "subscribe" query. 0 or TIMEOUT, IO, NOMEM. timeout_ms 0 = do not
 * wait. */
int roll_client_next(roll_client_t *client, int timeout_ms, json_t **verdict);

#endif
