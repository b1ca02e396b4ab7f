; Where Python code does something that a rule may speak of.
; What is called, with what:
(call) @call

; What is brought in:
(import_statement) @import
(import_from_statement) @import

; What is handed on instead of being called: an argument, a default, an item, a result, something kept in an object.
(argument_list [(identifier) (attribute) (subscript) (call)] @use)
(keyword_argument value: [(identifier) (attribute) (subscript) (call)] @use)
(default_parameter value: [(identifier) (attribute)] @use)
(return_statement [(identifier) (attribute) (subscript) (call)] @use)
(assignment left: [(attribute) (subscript)] right: [(identifier) (attribute) (subscript) (call)] @use)
(pair value: [(identifier) (attribute)] @use)
([(list) (tuple)] . [(identifier) (attribute)] @use)

; sys.modules["name"] brings in what was loaded before.
(subscript) @subscript
