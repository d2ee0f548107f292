"""A small look-alike of the Hugging Face Hub's HTTP API for offline tests: standard library, loopback only.

It speaks what publishing, pushing and loading models ask for: whoami, repository create, preupload, commit (inline
files and LFS pointers), git-LFS upload, repository info, tree, branches, resolve (HEAD, GET), the Hub's error codes,
and private repositories. The token `hf_test` is user "tester". It does not speak Xet: switch that off in the client.

`failures` (regex of a path: status) injects errors, `requests` lists what came.
"""

import base64
import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml

USERS = {"hf_test": "tester"}  # token -> name
ALWAYS_LFS = re.compile(r"\.(safetensors|bin|pt|pth|parquet|arrow|gz)$")
LFS_THRESHOLD, TEXT_THRESHOLD = 4096, 10 << 20  # bytes from which a binary, a text file is stored as LFS
GITATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())


def git_blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def front_matter(text: str) -> dict:
    front = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    return (yaml.safe_load(front.group(1)) if front else None) or {}


class HubError(Exception):
    """An answer with an error status; `code` is the Hub's X-Error-Code."""

    def __init__(self, status: int, code: str = "", message: str = "", headers: dict | None = None):
        self.status, self.code, self.message, self.headers = status, code, message or code, headers or {}


class HubServer(ThreadingHTTPServer):
    """The server, its repositories and what its requests share."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.RLock()
        self.repos: dict[str, dict] = {}  # name -> whether it is private, branches, commits
        self.blobs: dict[str, bytes] = {}  # hash -> content
        self.failures: dict[str, int] = {}  # regex of a path -> status
        self.requests: list[tuple[str, str, int]] = []  # method, path, bytes of the body

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def keep(self, data: bytes) -> dict:
        """The entry of a file that is not LFS."""
        oid = git_blob_id(data)
        self.blobs[oid] = data
        return {"oid": oid, "size": len(data)}

    def add_commit(self, repo: dict, branch: str, files: dict) -> str:
        parent = repo["refs"].get(branch)
        sha = hashlib.sha1(json.dumps([parent, files, time.time_ns()]).encode()).hexdigest()
        repo["commits"][sha] = {"files": files, "date": now()}
        repo["refs"][branch] = sha
        return sha


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        """Silence: the requests are in `requests`."""

    # ---- plumbing

    def do_GET(self):
        path = urlsplit(self.path).path
        self.body = self._read_body()
        self.server.requests.append((self.command, path, len(self.body)))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
        self.user = USERS.get(token)
        try:
            with self.server.lock:
                self._dispatch(path)
        except HubError as error:
            headers = {"X-Error-Code": error.code, "X-Error-Message": error.message} if error.code else {}
            self.answer({"error": error.message}, error.status, headers | error.headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:  # a bug here must show in the client, not hang it
            self.answer({"error": repr(error)}, 500)

    do_HEAD = do_POST = do_PUT = do_GET

    def _dispatch(self, path: str) -> None:
        for pattern, status in list(self.server.failures.items()):
            if re.search(pattern, path):
                raise HubError(status, "Injected")
        for methods, pattern, action in ROUTES:
            match = pattern.fullmatch(path)
            if match and self.command in methods:
                return action(self, **{name: unquote(value) for name, value in match.groupdict("").items()})
        raise HubError(404, message=f"no route for {self.command} {path}")

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, data, status: int = 200, headers: dict | None = None) -> None:
        """Send `data` as it is if bytes, otherwise as JSON."""
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": len(content)} | (headers or {})
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    # ---- access

    def logged_in(self) -> str:
        if not self.user:
            raise HubError(401, message="Invalid username or password.")
        return self.user

    def repo(self, repo_id: str, write: bool = False) -> dict:
        if write:
            self.logged_in()
        repo, is_owner = self.server.repos.get(repo_id), self.user == repo_id.split("/")[0]
        if repo is None or (repo["private"] and not is_owner):
            raise HubError(404 if self.user else 401, "RepoNotFound", "Repository not found")
        if write and not is_owner:
            raise HubError(403, message="You don't have the rights")
        return repo

    def commit_of(self, repo: dict, revision: str) -> tuple[str, dict]:
        """Resolve a branch or commit to (commit, its files by path)."""
        sha = repo["refs"].get(revision or "main", revision)
        if sha not in repo["commits"]:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repo["commits"][sha]["files"]

    # ---- account and repositories

    def whoami(self):
        name, token = self.logged_in(), {"displayName": "test", "role": "write"}
        account = {"type": "user", "id": "0", "name": name, "fullname": name, "orgs": []}
        self.answer(account | {"auth": {"accessToken": token}})

    def create(self):
        wanted = self.json()
        repo_id = f"{wanted.get('organization') or self.logged_in()}/{wanted['name']}"
        url = f"{self.server.url}/{repo_id}"
        if repo_id in self.server.repos:
            return self.answer({"error": "You already created this repo", "url": url}, 409)
        private = bool(wanted.get("private") or wanted.get("visibility") == "private")
        repo = {"private": private, "created": now(), "refs": {}, "commits": {}}
        self.server.add_commit(repo, "main", {".gitattributes": self.server.keep(GITATTRIBUTES)})
        self.server.repos[repo_id] = repo
        self.answer({"url": url, "name": repo_id, "id": repo_id})

    def info(self, repo_id, revision):
        repo = self.repo(repo_id)
        sha, files = self.commit_of(repo, revision)
        card = front_matter(self.server.blobs[files["README.md"]["oid"]].decode()) if "README.md" in files else {}
        dates = {"createdAt": repo["created"], "lastModified": repo["commits"][sha]["date"]}
        siblings = [
            {"rfilename": path, "size": file["size"], "blobId": file["oid"]} | lfs_entry(file, "sha256")
            for path, file in sorted(files.items())
        ]
        found = {"_id": hashlib.md5(repo_id.encode()).hexdigest()[:24], "id": repo_id, "modelId": repo_id, "sha": sha}
        found |= {"private": repo["private"], "tags": card.get("tags") or [], "cardData": card, "siblings": siblings}
        self.answer(found | dates)

    def validate_yaml(self):
        front_matter(self.json().get("content") or "")
        self.answer({"errors": [], "warnings": []})

    # ---- upload

    def preupload(self, repo_id, revision):
        repo, modes = self.repo(repo_id, write=True), []
        files = self.commit_of(repo, revision)[1]
        for file in self.json()["files"]:
            binary = b"\0" in base64.b64decode(file.get("sample") or "")
            large = file["size"] > (LFS_THRESHOLD if binary else TEXT_THRESHOLD)
            mode = "lfs" if large or ALWAYS_LFS.search(file["path"]) else "regular"
            oid = files.get(file["path"], {}).get("oid")
            modes.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer({"files": modes, "commitOid": repo["refs"]["main"]})

    def lfs_batch(self, repo_id):
        self.repo(repo_id, write=True)
        objects = []
        for wanted in self.json()["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.server.blobs:
                places = {"upload": f"_lfs/{wanted['oid']}", "verify": "_lfs_verify"}
                entry["actions"] = {
                    name: {"href": f"{self.server.url}/{place}", "header": {}} for name, place in places.items()
                }
            objects.append(entry)
        self.answer({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise HubError(400, message="sha256 mismatch")
        self.server.blobs[oid] = self.body
        self.answer({})

    def lfs_verify(self):
        wanted = self.json()
        self.answer({}, 200 if len(self.server.blobs.get(wanted["oid"], b"")) == wanted["size"] else 404)

    def commit(self, repo_id, revision):
        repo = self.repo(repo_id, write=True)
        head, files = self.commit_of(repo, revision)
        files = dict(files)
        for line in filter(None, map(bytes.strip, self.body.splitlines())):
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                if value.get("parentCommit") not in (None, head):
                    raise HubError(412, message="A commit has happened since. Please refresh and try again.")
            elif entry["key"] == "file":
                files[value["path"]] = self.server.keep(base64.b64decode(value["content"]))
            elif entry["key"] == "lfsFile":
                oid = value["oid"]
                files[value["path"]] = {"oid": oid, "lfs": oid, "size": len(self.server.blobs[oid])}
            else:
                raise HubError(400, message=f"unknown commit entry {entry['key']}")
        sha = self.server.add_commit(repo, revision, files)
        url = f"{self.server.url}/{repo_id}/commit/{sha}"
        self.answer({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def create_branch(self, repo_id, name):
        repo = self.repo(repo_id, write=True)
        if name in repo["refs"]:
            raise HubError(409, message="Reference already exists")
        repo["refs"][name] = self.commit_of(repo, self.json().get("startingPoint") or "")[0]
        self.answer({})

    # ---- files

    def tree(self, repo_id, revision, path):
        files = self.commit_of(self.repo(repo_id), revision)[1]
        prefix = f"{path.strip('/')}/" if path else ""
        entries = [
            {"type": "file", "path": name, "oid": file["oid"][:40], "size": file["size"]} | lfs_entry(file, "oid")
            for name, file in sorted(files.items())
            if name.startswith(prefix)
        ]
        if prefix and not entries:
            raise HubError(404, "EntryNotFound", f"{path} does not exist")
        self.answer(entries)

    def resolve(self, repo_id, revision, path):
        sha, files = self.commit_of(self.repo(repo_id), revision)
        file = files.get(path)
        if not file:
            raise HubError(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": sha})
        headers = {"X-Repo-Commit": sha, "ETag": f'"{file["oid"]}"', "Content-Type": "application/octet-stream"}
        if "lfs" in file:
            headers |= {"X-Linked-Etag": f'"{file["lfs"]}"', "X-Linked-Size": file["size"]}
        self.answer(self.server.blobs[file["oid"]], headers=headers)


def lfs_entry(file: dict, hash_name: str) -> dict:
    return {"lfs": {hash_name: file["lfs"], "size": file["size"], "pointerSize": 134}} if "lfs" in file else {}


REPO = r"(?P<repo_id>[\w.-]+/[\w.-]+)"
API = rf"/api/models/{REPO}"
REVISION = r"(?P<revision>[^/]+)"
ROUTES = [
    (methods.split(), re.compile(pattern), action)
    for methods, pattern, action in [
        ("PUT", r"/_lfs/(?P<oid>\w{64})", Handler.lfs_put),
        ("POST", r"/_lfs_verify", Handler.lfs_verify),
        ("GET", r"/api/whoami-v2", Handler.whoami),
        ("POST", r"/api/repos/create", Handler.create),
        ("POST", r"/api/validate-yaml", Handler.validate_yaml),
        ("POST", rf"{API}/preupload/{REVISION}", Handler.preupload),
        ("POST", rf"{API}/commit/{REVISION}", Handler.commit),
        ("GET", rf"{API}/tree/{REVISION}(?:/(?P<path>.+))?", Handler.tree),
        ("POST", rf"{API}/branch/(?P<name>[^/]+)", Handler.create_branch),
        ("GET", rf"{API}(?:/revision/{REVISION})?", Handler.info),
        ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
        ("GET HEAD", rf"/{REPO}/resolve/{REVISION}/(?P<path>.+)", Handler.resolve),
    ]
]
