"""nginx as a plain reverse proxy: the floor for a server that does nothing but pass bytes on."""

import shutil
import subprocess
from pathlib import Path

from bench.peers.peer import Missing, Start, Target
from bench.shapes import PATHS, Route

CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  keepalive_requests 1000000;
  client_max_body_size 32m;
  client_body_buffer_size 4m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream mock {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://mock;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 3600s;
    }}
  }}
}}
"""


class Nginx:
    """One worker, upstream keep-alive, no access log, no buffering."""

    name = "nginx"
    title = "nginx"

    def prepare(self) -> None:
        """Looks for the program; installing system packages is not ours to do."""
        if _program() is None:
            raise Missing("nginx is not installed (Debian: apt-get install nginx-light)")

    def version(self) -> str:
        """What `nginx -v` says."""
        output = subprocess.run([_program() or "nginx", "-v"], capture_output=True, text=True, check=True)
        return output.stderr.strip().rpartition("/")[2]

    def start(self, folder: Path, port: int, upstream: int) -> Start:
        """Writes the configuration."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, port=port, upstream=upstream))
        return Start([_program() or "nginx", "-e", "stderr", "-p", str(folder), "-c", str(config)])

    def target(self, route: Route, model: str, upstream: int) -> Target | None:
        """The same path; nginx translates nothing."""
        return Target(PATHS[route.client], {}, model) if route.client == route.upstream else None


def _program() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
