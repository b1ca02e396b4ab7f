; Where a shell does something that a rule may speak of. Patterns of one node: they cost nothing to compile.
(command) @command
(file_redirect) @redirect

; A here-document or here-string may be a script for another shell.
(redirected_statement) @fed
