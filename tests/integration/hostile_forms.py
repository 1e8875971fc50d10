"""A hundred forms of answers that are made to cost time, memory or a stack, or to be wrong."""


def regexes():
    for count in (10, 100, 1000, 10000):
        yield f"(a{{0,{count}}}){{0,{count}}}"
        yield f"([^a]{{0,{count}}}[^b]{{0,{count}}})*"
        yield f"(x|y|z){{{count}}}[0-9]+"
        yield f"(\\w+\\s?){{{count},}}"
    for depth in (8, 30, 31, 100, 200):
        yield "(" * depth + "a" + ")*" * depth
        yield "(?:" * depth + "a|b" + ")+" * depth
    yield from ("(", "[z-a]", "a{5,2}", "(a)\\1", "(?=a)a", "(?<=a)b", "^$", "", "\\p{L}+", "[[:alpha:]]",
                "(a+)+$", "(a|a)*b", "a{0,99999}", "(.*)(.*)(.*)(.*)x", "|".join(f"word{i}" for i in range(5000)))


def grammars():
    for count in (10, 100, 1000, 60000):
        yield f'root ::= ("a"{{1,{count}}}){{1,{count}}}'
        yield f"root ::= [^a]{{0,{count}}} [^b]{{0,{count}}}"
    yield from ("root ::= missing", "root ::= root", "root ::= root root root | root root | [a-z]",
                'root ::= "a" root "a" | "a"', "root ::= a\na ::= b\nb ::= a", "", "root", 'root ::= "a', "x ::= y",
                "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "root ::= " + " | ".join(f'"{i}"' for i in range(6000)),
                "root ::= " + " ".join(f"r{i}?" for i in range(500)) + "".join(
                    f"\nr{i} ::= [a-z]{{1,50}}" for i in range(500)))


def schemas():
    for count in (50, 200, 1000, 10000):
        yield {"type": "string", "maxLength": count}
        yield {"type": "string", "minLength": count}
        yield {"type": "array", "items": {"type": "string", "maxLength": 50}, "minItems": count}
        yield {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}
        yield {"enum": [f"value {i}" for i in range(count)]}
        yield {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": count},
               "maxItems": count}
    for depth in (10, 16, 17, 400):
        deep = {"type": "null"}
        for _ in range(depth):
            deep = {"type": "object", "properties": {"a": deep, "b": {"type": "string", "maxLength": 100}},
                    "required": ["a"]}
        yield deep
    many = {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 10000}
    yield {**many, "$defs": {"x": {"anyOf": [many, {"type": "null"}]}}}
    yield {"$ref": "#"}
    yield {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    yield {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(49)}, "minProperties": 24}
    yield {"anyOf": [{"type": "object", "properties": {f"p{i}": {"type": "integer"}}, "required": [f"p{i}"]}
                     for i in range(400)]}
    yield {"type": "object", "patternProperties": {"^(a|b|c){0,500}$": {"type": "string"}}}
    yield {"type": "integer", "multipleOf": 255, "minimum": -10 ** 9, "maximum": 10 ** 9}
    yield {"type": "number", "minimum": -0.000001, "maximum": 999999999.999999}
    yield {"type": "string", "pattern": "(a?){0,1000}(b?){0,1000}"}
    yield {"not": {}}
    yield {"type": "string", "format": "uri", "maxLength": 5}


def forms():
    """The `structured_outputs` of requests, of all kinds in turn."""
    kinds = [[{"regex": one} for one in regexes()], [{"grammar": one} for one in grammars()],
             [{"json": one} for one in schemas()]]
    return [kind[i] for i in range(max(map(len, kinds))) for kind in kinds if i < len(kind)]

