/*
 * raw_peer.h: a peer that speaks ZMTP 3.0 by hand, without keys: for what libzmq would never send.
 */
#ifndef ROLL_TESTS_DAEMON_RAW_PEER_H
#define ROLL_TESTS_DAEMON_RAW_PEER_H

/* Connects to a loopback tcp endpoint, or one of ipc, as a DEALER, the handshake done. A descriptor; fails the test
 * else. */
int raw_peer(const char *endpoint);

#endif
