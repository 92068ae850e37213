#!/usr/bin/env bash
# Installs the pinned official SDKs below the folder given, once for each state of this folder; prints nothing when they
# are there. Needs python3 (with venv) and node 20 with npm.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
to=${1:?usage: install.sh FOLDER}
mkdir -p "$to"
# The stamp is what was installed, byte for byte: a changed pin installs again.
stamp=$(cat "$here/requirements.txt" "$here/package.json" "$here/sign.py" "$here/sign.mjs" | sha256sum | cut -d' ' -f1)

exec 9>"$to/.lock"
flock 9
if [ "$(cat "$to/.installed" 2>/dev/null || true)" = "$stamp" ]; then exit 0; fi
rm -f "$to/.installed"

for tool in python3 node npm; do
    command -v "$tool" >/dev/null || { echo "peers: $tool is missing" >&2; exit 1; }
done
python3 -m venv --clear "$to/venv"
"$to/venv/bin/pip" install --quiet --disable-pip-version-check --no-input --requirement "$here/requirements.txt"

# No lock file: it would hold the name of whatever registry this machine uses. The one package has no dependencies.
cp "$here/package.json" "$here/sign.py" "$here/sign.mjs" "$to/"
(cd "$to" && npm install --silent --no-package-lock --no-audit --no-fund)
echo "$stamp" >"$to/.installed"
