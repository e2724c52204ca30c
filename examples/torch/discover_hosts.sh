#!/bin/sh
# A discovery script for elastic jobs: prints the hosts there are now, one `host:slots` a line. `corro run` asks it every second.
# This one reads them from a file, so that you can try it by hand: echo localhost:4 > /tmp/hosts
cat "${ELASTIC_HOSTS:-/tmp/hosts}"
