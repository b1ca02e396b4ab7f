; Where a shell does something that a rule may speak of.
(command) @command
(file_redirect destination: (_) @redirect)

; A here-document or here-string may be a script for another shell.
(redirected_statement) @fed
(command redirect: (herestring_redirect)) @fed
