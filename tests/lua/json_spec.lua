-- tlua.json: what is written reads back; what is no JSON is refused.
local json = require "tlua.json"

describe("json", function()
  it("reads back what it wrote, and writes the same text again", function()
    for _, text in ipairs {
      '{"a":null,"b":[1e-05,2,true],"c":[],"d":{},"e":{"f":"g"}}', "[]", "{}", "[[],{}]", "-0.5", '"\\u0001\\n"',
      "1e+300",
      '"\xc3\xa9\xf0\x9f\x98\x80"',
    } do
      assert.equal(text, json.encode(json.decode(text)))
    end
    assert.equal('{"a":1,"b":[1,2]}', json.encode { b = { 1, 2 }, a = 1 })
  end)

  it("reads escapes", function()
    assert.equal("\xc3\xa9 \xf0\x9f\x98\x80 \\u00e9 \"/\t", json.decode [["\u00e9 \ud83d\uDE00 \\u00e9 \"\/\t"]])
    assert.equal("\n12", json.decode [["\n12"]])
  end)

  it("refuses what is no JSON", function()
    for _, text in ipairs {
      "", "[1,", '{"a" 1}', '{"a":1}x', "nul", '{"a":-}', '"\\u00"', '"\\ug000"', '"open', "{a:1}", "[1 2]",
      ("["):rep(100000),
    } do
      assert.is_false((pcall(json.decode, text)), text:sub(1, 10))
    end
  end)
end)
