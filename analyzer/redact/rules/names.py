"""The names by which a machine and its user are known, as far as a report gives them away."""

from __future__ import annotations

import getpass
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.redact.rules.assigned import is_secret, values
from kanalyze.redact.rules.words import words

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Names that thousands of machines and users share. They identify nobody, and occur in names of kernels and ranges.
_GENERIC: Final = words(
    """
    root user users admin administrator guest nobody daemon ubuntu debian centos fedora rocky alpine suse arch linux
    ec2-user azureuser opc cloud-user vagrant docker podman container pod runner jovyan vscode codespace jenkins gitlab
    gitlab-runner github build builder ci test tests testing dev devel developer default none null true false local
    localhost localdomain host hosts node node0 node1 server client worker master main head compute vm vm0 vm1 box
    workstation desktop laptop gpu gpus gpu0 gpu1 cpu cuda nvidia nvcc nsys ncu torch pytorch triton python python3
    conda kernel kernels stream streams device devices graph launch memory train training infer inference model models
    data dataset project projects work workspace home share shared public app apps opt tmp var usr bin lib src code repo
    profile profiler report reports add mul copy fill square gelu matmul cdist step forward backward loss optimizer
    """
)
_SHORTEST: Final = 3

_HOST_VARIABLES: Final = words(
    """
    HOST HOSTNAME COMPUTERNAME NODENAME NODE_NAME POD_NAME CONTAINER_NAME SLURMD_NODENAME SLURM_TOPOLOGY_ADDR PBS_O_HOST
    LSB_HOSTS SLURM_SUBMIT_HOST MASTER_ADDR SESSION_MANAGER
    """
)
_USER_VARIABLES: Final = words(
    """
    USER USERNAME LOGNAME SUDO_USER SLURM_JOB_USER JUPYTERHUB_USER PBS_O_LOGNAME GITHUB_ACTOR GIT_AUTHOR_NAME
    GIT_COMMITTER_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_EMAIL EMAIL GITLAB_USER_LOGIN USERDOMAIN SLURM_JOB_ACCOUNT
    """
)
_FOLDER_VARIABLES: Final = frozenset(("HOME", "PWD", "OLDPWD", "USERPROFILE", "VIRTUAL_ENV", "CONDA_PREFIX"))

#: A shorter value of a secret variable is looked for only where it is assigned: it may be a word, or a number.
_SECRET_AT_LEAST: Final = 8

#: Where a user's name stands in a path, and a host's in a file name or a log.
_USERS_IN_TEXT: Final = re.compile(
    r"(?:/home/|/Users/|\\Users\\|/export/home/|/var/home/|/scratch/users/|torchinductor_)([^/\\\s\0-\x1f\"'<>|:;,()\[\]{}$*?=]+)"
)
_HOSTS_IN_TEXT: Final = re.compile(
    r"^([\w.-]+):\d+:\d+ \[\d+\] NCCL |(?:^|[/\\])([\w.-]+?)_\d+\.\d+\.pt\.trace\.json"
    r"|(?<![\w.+-])[\w.+-]++@((?:[\w-]+\.)*[\w-]+):[/~]",
    re.MULTILINE,
)
#: A variable and its value, in what tools write of an environment: separated by NUL, semicolon or line.
_VARIABLE: Final = re.compile(r"(?:^|[\0;\n])([A-Za-z_]\w*)=\"?([^\0;\n\"]*)")


@dataclass
class Names:
    """What identifies, collected before anything is written.

    Attributes:
        hosts: Names of machines.
        users: Names of users.
        folders: Absolute folders: home, working folder, the report's own.
        secrets: Texts that go wherever they occur: values of secret variables, and what the user asked to remove.
        keep: Texts that the user asked to keep, which are none of these.
    """

    hosts: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    secrets: set[str] = field(default_factory=set)
    keep: frozenset[str] = frozenset()

    def host(self, name: object) -> None:
        """A machine is called `name`; of ``node7.example.org`` the first part identifies, too."""
        whole = str(name or "").strip()
        for part in (whole, whole.partition(".")[0]):
            if self._tells(part):
                self.hosts.add(part)

    def user(self, name: object) -> None:
        """A user is called `name`, or has this address."""
        for part in re.split(r"[@\\]", str(name or "").strip()):
            if self._tells(part):
                self.users.add(part)

    def folder(self, path: object) -> None:
        """`path` is a folder of that machine; what it is called for may be a user."""
        text = str(path or "").rstrip("/\\")
        if re.match(r"/[^/]|[A-Za-z]:[\\/]", text):
            self.folders.add(text)
            self.text(text)

    def secret(self, text: str) -> None:
        """`text` goes, wherever it occurs."""
        if text and text not in self.keep:
            self.secrets.add(text)

    def variable(self, name: str, value: str) -> None:
        """The environment had `value` for the variable `name`."""
        if is_secret(name):
            self._assigned(value)
        elif name in _HOST_VARIABLES:
            self.host(value)
        elif name in _USER_VARIABLES:
            self.user(value)
        elif name in _FOLDER_VARIABLES:
            self.folder(value)

    def _assigned(self, value: str) -> None:
        """A secret has this value, which goes wherever it occurs if it can be nothing else."""
        if len(value) >= _SECRET_AT_LEAST and not re.fullmatch(r"[\d.]+|/.*|true|false", value):
            self.secret(value)

    def environment(self, text: str) -> None:
        """`text` is an environment as tools write it, ``A=1;B=2``."""
        for name, value in _VARIABLE.findall(text):
            self.variable(name, value)

    def text(self, text: str) -> None:
        """Take names from `text` that stand in it as such: homes in paths, hosts in logs of NCCL."""
        for name in _USERS_IN_TEXT.findall(text):
            self.user(name)
        for found in _HOSTS_IN_TEXT.findall(text):
            self.host("".join(found))
        for begin, end in values(text):
            if not text[begin:end].isalpha():  # which may be any word
                self._assigned(text[begin:end])

    def here(self) -> None:
        """Add this machine and its user: most reports are redacted where they were made."""
        with suppress(OSError):
            self.host(socket.gethostname())
        with suppress(OSError, KeyError, ImportError):
            self.user(getpass.getuser())
        with suppress(RuntimeError):
            self.folder(Path.home())
        for name in (*_USER_VARIABLES, *_HOST_VARIABLES):
            self.variable(name, os.environ.get(name, ""))

    def _tells(self, name: str) -> bool:
        """Whether `name` identifies anybody."""
        kept = {text.lower() for text in self.keep}
        low = name.lower()
        return len(name) >= _SHORTEST and low not in _GENERIC and low not in kept and not re.fullmatch(r"[\d.:]+", name)


def asked(keep: Iterable[str], remove: Iterable[str]) -> Names:
    """The names of this machine and what the user asked for."""
    names = Names(keep=frozenset(keep))
    for text in remove:
        names.secret(text)
    names.here()
    return names
