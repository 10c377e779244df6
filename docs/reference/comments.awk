# What a header says at its top, in ordinary comments, is Doxygen's text of the file; <name> in a comment is no tag. A comment behind
# several members of one type is that of each. Copying, moving, comparing and destroying are what they are everywhere. In C a comment
# behind a member is its text.
/^#pragma once/ { top = 1; print; next }
top == 1 && /^\/\// { print "/// @file"; top = 2 }
top == 2 && /^\/\// { sub(/^\/\//, "///") }
top == 2 && !/^\/\// { top = 3 }
/^ *\/\/\/ ./ { gsub(/<[a-z]+>/, "`&`"); gsub(/``/, "`") }
/operator==.*(default|delete);/ || /^ *[A-Z][A-Za-z]*\((const )?[A-Z][A-Za-z]*&&?\) = (default|delete);/ { next }
/^ *[A-Z][A-Za-z]*& operator=\(.*\) = (default|delete);/ || /^ *(virtual )?~[A-Z][A-Za-z]*\(\)( = default)?;/ { next }
/^ *[A-Za-z_:0-9<>]+ [a-z_0-9]+( = [^,;(]*)?, [a-z_0-9]+.*;  *\/\/\/</ {
  split($0, halves, /;  *\/\/\/</)
  match($0, /\/\/\/</)
  text = substr($0, RSTART)
  count = split(halves[1], names, /, /)
  match(names[1], /^ *[A-Za-z_:0-9<>]+ /)
  type = substr(names[1], 1, RLENGTH)
  for (i = 1; i <= count; ++i) print (i == 1 ? "" : type) names[i] ";  " text
  next
}
FILENAME ~ /_c\.h$/ && /; +\/\* .* \*\/$/ { sub(/\/\* /, "/**< ") }
FILENAME ~ /_c\.h$/ && /^ *\/\* [^-]/ { sub(/\/\* /, "/** ") }
{ print }
