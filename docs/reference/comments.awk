# What a header says at its top, in ordinary comments, is Doxygen's text of the file; <name> in a comment is no tag.
/^#pragma once/ { top = 1; print; next }
top == 1 && /^\/\// { print "/// @file"; top = 2 }
top == 2 && /^\/\// { sub(/^\/\//, "///") }
top == 2 && !/^\/\// { top = 3 }
/^ *\/\/\// { gsub(/<[a-z]+>/, "`&`"); gsub(/``/, "`") }
{ print }
