/*
 * doors.h: how many connections that have ended one address may leave behind.
 *
 * A ROUTER gives the name of a connection to whoever comes with it last (ZMQ_ROUTER_HANDOVER: an agent that comes back
 * must get its place again, also while its old connection has not been found dead). The old connection has no queue
 * from there on; libzmq 4.3.4 stops reading it at its next message, and never looks at it again: its descriptor and
 * 21 KiB stay until the process ends. An unlucky agent leaves one in a while. Who is let in and does it on purpose
 * could leave all that there are, so an address of which so many have stayed is let in once a minute from there on:
 * that is enough for an agent, and a thousand a day for who means harm. So many addresses as are connected at a time
 * are told apart, up to 1,024; those that come behind these are counted as one.
 *
 * What cannot be taken at all, because of the network or for want of descriptors, ends nothing: libzmq does not bear
 * all such errors, and is told of none but that the connection has gone.
 *
 * Any thread.
 */
#ifndef ROLL_DAEMON_WIRE_DOORS_H
#define ROLL_DAEMON_WIRE_DOORS_H

#include <stdbool.h>

#define ROLL_DOORS_LEFT  512u /* so many may stay of one address */
#define ROLL_DOORS_SHARE 16u  /* or this part of the descriptors that the process may have, if that is less */

/* Whether connections are counted that come to what this thread listens on from here on. Begins with false. */
void roll_doors_watch(bool on);
/* Logs which address was kept out since this was asked last, and why connections could not be taken; role: "root",
 * "relay". Returns how many connections were turned away or lost by that; those that wait are none of them. */
unsigned roll_doors_tell(const char *role);

#endif
