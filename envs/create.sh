#!/bin/sh
# Finds Python 3.11 or 3.12 and lets create.py build the environment with it. PYTHON=... chooses another one.
here=$(dirname "$0")
for python in ${PYTHON:-python3.11 python3.12 python3}; do
    if "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
        exec "$python" "$here/create.py" "$@"
    fi
done
echo "np1d needs Python 3.11 or 3.12 and found neither; on Debian 12: apt-get install python3.11 python3.11-venv" >&2
exit 1
