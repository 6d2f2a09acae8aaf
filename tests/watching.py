"""A watch over what processes ask of the network: look-ups of names, connections and datagrams that leave the machine.

A small library, compiled here, stands before the C library in a process and all that it starts (LD_PRELOAD) and writes down
each such call before it lets it through. It sees what goes through the C library: everything that Python and the runtimes do.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void note(const char *call, const char *whom) {
  const char *path = getenv("WATCHING_LOG");
  int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
  if (file < 0) return;
  dprintf(file, "%d %s %s\n", (int)getpid(), call, whom);
  close(file);
}

static int is_name_here(const char *name) {
  char own[256] = "";
  gethostname(own, sizeof own - 1);
  return !name || !*name || !strcmp(name, "localhost") || !strncmp(name, "127.", 4) || !strcmp(name, "::1")
      || !strcmp(name, own);
}

static void look(const char *call, const struct sockaddr *to) {
  char text[INET6_ADDRSTRLEN] = "";
  if (!to) return;
  if (to->sa_family == AF_INET) {
    const struct sockaddr_in *a = (const void *)to;
    if ((ntohl(a->sin_addr.s_addr) >> 24) == 127) return;
    inet_ntop(AF_INET, &a->sin_addr, text, sizeof text);
    note(call, text);
  } else if (to->sa_family == AF_INET6) {
    const struct sockaddr_in6 *a = (const void *)to;
    if (IN6_IS_ADDR_LOOPBACK(&a->sin6_addr)) return;
    inet_ntop(AF_INET6, &a->sin6_addr, text, sizeof text);
    note(call, text);
  }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
  if (!is_name_here(node)) note("getaddrinfo", node);
  return REAL(getaddrinfo)(node, service, hints, found);
}
struct hostent *gethostbyname(const char *name) {
  if (!is_name_here(name)) note("gethostbyname", name);
  return REAL(gethostbyname)(name);
}
struct hostent *gethostbyname2(const char *name, int family) {
  if (!is_name_here(name)) note("gethostbyname2", name);
  return REAL(gethostbyname2)(name, family);
}
int gethostbyname_r(const char *name, struct hostent *one, char *buffer, size_t size, struct hostent **found, int *error) {
  if (!is_name_here(name)) note("gethostbyname_r", name);
  return REAL(gethostbyname_r)(name, one, buffer, size, found, error);
}
int connect(int file, const struct sockaddr *to, socklen_t size) {
  look("connect", to);
  return REAL(connect)(file, to, size);
}
ssize_t sendto(int file, const void *data, size_t count, int flags, const struct sockaddr *to, socklen_t size) {
  look("sendto", to);
  return REAL(sendto)(file, data, count, flags, to, size);
}
ssize_t sendmsg(int file, const struct msghdr *message, int flags) {
  look("sendmsg", message->msg_name);
  return REAL(sendmsg)(file, message, flags);
}
int sendmmsg(int file, struct mmsghdr *messages, unsigned count, int flags) {
  for (unsigned i = 0; i < count; i++) look("sendmmsg", messages[i].msg_hdr.msg_name);
  return REAL(sendmmsg)(file, messages, count, flags);
}
"""


class Watch:
    """The library and its log in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        source, self._library, self._log = folder / "watch.c", folder / "watch.so", folder / "calls"
        source.write_text(_SOURCE, encoding="utf-8")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"], check=True)

    def environment(self, **more: str) -> Mapping[str, str]:
        """For a process that is to be watched, with all that it starts."""
        return {**os.environ, "LD_PRELOAD": str(self._library), "WATCHING_LOG": str(self._log), **more}

    @property
    def calls(self) -> list[str]:
        """ "call whom", of each that was seen."""
        lines = self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []
        return [line.partition(" ")[2] for line in lines]
