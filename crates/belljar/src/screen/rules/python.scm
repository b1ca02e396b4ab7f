; Where Python code does something that a rule may speak of. Each pattern is one node on one line.
; What is called, with what:
(call) @call

; What is brought in, by a statement or from sys.modules:
(import_statement) @import
(import_from_statement) @import
(subscript) @subscript

; Where something may be handed on instead of being called: as an argument, a default, an item, a result, or kept in an
; object.
(argument_list) @values
(keyword_argument) @value
(default_parameter) @value
(pair) @value
(return_statement) @values
(list) @values
(tuple) @values
(assignment) @kept
