; Where a shell does something that a rule may speak of. Each pattern is one node on one line.
(command) @command
(file_redirect) @redirect

; A here-document or here-string may be a script for another shell.
(redirected_statement) @fed
