#!/bin/sh
# The adapter `niced`: it polls the adapter that comes first in its path, with a low priority. The inner adapter gets its own URI,
# as argument and on stdin; its stdout and its exit code are the answer.
inner=${1#dml+exec://niced/}
sed "s|\"dml+exec://niced/|\"dml+exec://|" | nice -n 10 "pyengine-adapter-${inner%%/*}" "dml+exec://$inner"
