; Where JavaScript does something that a rule may speak of.
; What is called or made, with what:
[(call_expression) (new_expression)] @call

; What is brought in:
(import_statement) @import
(export_statement source: (_)) @import

; What is handed on instead of being called:
(arguments [(identifier) (member_expression) (subscript_expression)] @use)
(pair value: [(identifier) (member_expression)] @use)
(array [(identifier) (member_expression)] @use)
(return_statement [(identifier) (member_expression)] @use)
(assignment_expression left: [(member_expression) (subscript_expression)] right: [(identifier) (member_expression)] @use)
