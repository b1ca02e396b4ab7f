; Where JavaScript does something that a rule may speak of. Each pattern is one node on one line.
; What is called or made, with what:
(call_expression) @call
(new_expression) @call

; What is brought in:
(import_statement) @import
(export_statement) @import

; Where something may be handed on instead of being called:
(arguments) @values
(pair) @value
(array) @values
(return_statement) @values
(assignment_expression) @kept
