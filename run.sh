#!/bin/bash
# usage: run.sh MODEL THREADS KIND N DEPTH SECS
cd /tmp/wt; KINETIC_HOME=/work/main/.kinetic PYTHONPATH=/tmp/wt /work/main/.venv/bin/python /tmp/prof.py "$@"
