#!/bin/sh
# fresh_pch.sh COMMAND...: compiles a precompiled header once that of an earlier build is gone. ccache would take the old one for a part
# of what it looks up, find nothing that another clone has compiled, and so nothing that was compiled with it, either.
before=
for word in "$@"; do
  case $before$word in -o*.gch) rm -f "$word" ;; esac
  before=$word
done
exec "$@"
