"""A hub by its own client: the Hugging Face Hub, or whatever HF_ENDPOINT names, through ``huggingface_hub``.

The library brings tokens, proxies, redirects and retries. Its own
``hf_hub_download`` deletes what it has when it is interrupted; so its
``http_get`` is used here, which takes an offset to begin at.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kinetic.errors import FileProblem, KineticError, LicenseNotAccepted, NetworkError, UsageError
from kinetic.model_names import HubName

MAX_UNTRACKED = 64 << 20
"""Bytes of the largest file that is believed to be stored in Git itself; it is read as a whole."""

DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


class HubFile(NamedTuple):
    """A file of a repository. ``digest`` is its sha256, or the Git object's name (40 digits) of a file not in LFS."""

    path: str
    size: int
    digest: str


class HubRepo(NamedTuple):
    """A repository at one commit."""

    name: HubName
    commit: str
    files: dict[str, HubFile]


class Client:
    """Asks one hub about one name. Raises UsageError where the library is not installed."""

    def __init__(self, name: HubName) -> None:
        try:
            import huggingface_hub  # Not at the top: it takes 0.3 s, and is an extra.
            from huggingface_hub import constants, errors, utils
        except ImportError:
            raise UsageError(
                "pulling from a hub needs the package huggingface_hub: run pip install 'kinetic-engine[hub]'",
                name="NO_HUB_LIBRARY",
            ) from None
        self._library: Any = huggingface_hub
        self._errors: Any = errors
        self._utils: Any = utils
        self._name = name
        self.endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        self._utils.disable_progress_bars()
        self._utils.logging.set_verbosity_error()

    def look_up(self) -> HubRepo:
        """The commit and the files of the revision that is asked for."""
        api = self._library.HfApi(endpoint=self.endpoint)
        info = api.model_info(self._name.repo, revision=self._name.revision or None, files_metadata=True)
        files = (_hub_file(entry) for entry in info.siblings or ())
        found = {file.path: file for file in files if file.path.endswith(".gguf")}
        if not re.fullmatch("[0-9a-f]{40}", info.sha or ""):
            raise NetworkError(f"{self.endpoint} does not answer as a hub: check HF_ENDPOINT", name="NOT_A_HUB")
        return HubRepo(self._name, str(info.sha), found)

    def fetch(self, repo: HubRepo, file: HubFile, begin: int, target: Any) -> None:
        """Write a file from byte ``begin`` on. A connection that breaks off is taken up again a few times."""
        from huggingface_hub.file_download import http_get

        url = self._library.hf_hub_url(repo.name.repo, file.path, revision=repo.commit, endpoint=self.endpoint)
        # Compressed, its length would be that of something else.
        headers = {**self._utils.build_hf_headers(), "Accept-Encoding": "identity"}
        http_get(url, target, resume_size=begin, headers=headers, expected_size=file.size)

    @contextlib.contextmanager
    def errors(self, kept: Callable[[], str] | None = None) -> Iterator[None]:
        """The library's errors as ours; ``kept`` says what a download that broke off leaves."""
        try:
            yield
        except KineticError:
            raise
        except self._errors.HfHubHTTPError as error:
            raise self._answered(error) from error
        except self._errors.OfflineModeIsEnabled as error:
            raise NetworkError(
                f"{self._name} is not fetched, since HF_HUB_OFFLINE is set: unset it", name="OFFLINE"
            ) from error
        except self._errors.HFValidationError as error:
            raise UsageError(f"{self._name.repo} can't be the name of a repository", name="BAD_HUB_NAME") from error
        except (self._errors.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
            raise self._broken_off(error, kept) from error

    def _broken_off(self, error: BaseException, kept: Callable[[], str] | None) -> KineticError:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return FileProblem(f"the disk is full: {kept() if kept else 'nothing was fetched'}", name="DISK_FULL")
        if kept:
            return NetworkError(f"the download broke off: {kept()}", name="BROKEN_OFF")
        return NetworkError(
            f"the hub at {_shown(self.endpoint)} gave no answer that can be used: check the network and HF_ENDPOINT",
            name="NO_HUB",
        )

    def _answered(self, error: Any) -> KineticError:
        """What the hub's refusal means. None of its own words are repeated: they may hold addresses with secrets."""
        repo, revision, status = self._name.repo, self._name.revision, error.response.status_code
        login = "log in with `hf auth login` or set HF_TOKEN"
        if isinstance(error, self._errors.GatedRepoError):
            where = f"{_shown(self.endpoint)}/{repo}"
            return LicenseNotAccepted(f"{repo} is gated: accept its terms at {where}, and {login}", name="GATED")
        if isinstance(error, self._errors.RevisionNotFoundError):
            return NetworkError(
                f"{repo} has no revision {revision or 'main'}: look it up on the hub", name="NO_REVISION"
            )
        if isinstance(error, self._errors.RepositoryNotFoundError):
            problem = f"the hub has no {repo}, or it is private"
            return NetworkError(f"{problem}: check the name, or {login}", name="NO_REPO")
        if status in (401, 403):
            return NetworkError(
                f"the hub refuses access to {repo} ({status}): {login}, with a valid token", name="REFUSED"
            )
        if status == 404:
            return NetworkError(f"the hub no longer has what it listed of {repo}: try again", name="GONE")
        return NetworkError(f"the hub answered with error {status}: try again later", name="HUB_ERROR")


def _hub_file(entry: Any) -> HubFile:
    digest = entry.lfs.sha256 if entry.lfs else entry.blob_id or ""
    size = (entry.lfs.size if entry.lfs else entry.size) or 0
    is_known = DIGEST.fullmatch(digest) and (len(digest) == 64 or size <= MAX_UNTRACKED)
    # A file without a digest can't be checked, so that it is as if it weren't there.
    return HubFile(entry.rfilename if is_known else "", size, digest)


def _shown(endpoint: str) -> str:
    """An address without the user and password that may be in it."""
    return re.sub(r"//[^/@]*@", "//", endpoint)
