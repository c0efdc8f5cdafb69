// LaTeX to MathML for what models usually write. Anything else is shown as it was written.

import { math } from "./dom.js";

const SYMBOLS = Object.fromEntries(
  (
    "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν " +
    "xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π " +
    "Sigma Σ Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇ ell ℓ hbar ℏ emptyset ∅ varnothing ∅ prime ′ degree ° circ ∘ " +
    "times × cdot ⋅ div ÷ pm ± mp ∓ ast ∗ star ⋆ oplus ⊕ otimes ⊗ cup ∪ cap ∩ setminus ∖ wedge ∧ vee ∨ land ∧ lor ∨ neg ¬ " +
    "le ≤ leq ≤ leqslant ≤ ge ≥ geq ≥ geqslant ≥ ne ≠ neq ≠ approx ≈ equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ " +
    "in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ forall ∀ exists ∃ to → rightarrow → leftarrow ← implies ⟹ " +
    "Rightarrow ⇒ Leftarrow ⇐ iff ⟺ Leftrightarrow ⇔ leftrightarrow ↔ mapsto ↦ longrightarrow ⟶ uparrow ↑ downarrow ↓ " +
    "mid ∣ parallel ∥ perp ⊥ angle ∠ triangle △ cdots ⋯ ldots … dots … vdots ⋮ ddots ⋱ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ " +
    "lceil ⌈ rceil ⌉ lbrace { rbrace } lvert | rvert | vert | Vert ‖ | ‖ { { } } % % $ $ # # & & _ _ top ⊤ bot ⊥ because ∵ therefore ∴ checkmark ✓"
  )
    .split(" ")
    .reduce((pairs, word, place, all) => (place % 2 ? [...pairs, [all[place - 1], word]] : pairs), []),
);
const BIG = { sum: "∑", prod: "∏", int: "∫", iint: "∬", oint: "∮", bigcup: "⋃", bigcap: "⋂", lim: "lim", max: "max", min: "min", sup: "sup", inf: "inf" };
const FUNCTIONS = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp det dim ker gcd lcm deg arg mod Pr".split(" "));
const ACCENTS = { hat: "^", widehat: "^", bar: "¯", overline: "¯", vec: "→", tilde: "~", dot: "˙", ddot: "¨" };
const FONTS = { mathbb: "double-struck", mathcal: "script", mathbf: "bold", mathfrak: "fraktur", mathrm: "normal", boldsymbol: "bold" };
const DOUBLE = { R: "ℝ", N: "ℕ", Z: "ℤ", Q: "ℚ", C: "ℂ", P: "ℙ", H: "ℍ", E: "𝔼", F: "𝔽" };
const SPACES = new Set([",", ";", ":", "!", " ", "quad", "qquad", "displaystyle", "textstyle", "limits", "nolimits", "left.", "right.", ...["big", "Big", "bigg", "Bigg"].flatMap((size) => [size, `${size}l`, `${size}r`, `${size}m`])]);
const MATRICES = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], vmatrix: ["|", "|"], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], array: ["", ""], gathered: ["", ""] };
const MAX_LENGTH = 4000;
const MAX_DEPTH = 60;

class Parser {
  constructor(text) {
    this.tokens = text.match(/\\[a-zA-Z]+\*?|\\.|\d+(?:[.,]\d+)*|\s+|[^\s]/gsu) || [];
    this.place = 0;
    this.depth = 0;
  }

  peek() {
    while (this.tokens[this.place]?.trim() === "") this.place += 1;
    return this.tokens[this.place];
  }

  next() {
    const token = this.peek();
    this.place += 1;
    return token;
  }

  fail(why) {
    throw new SyntaxError(why);
  }

  row(stops) {
    if ((this.depth += 1) > MAX_DEPTH) this.fail("too deep");
    const items = [];
    while (this.peek() !== undefined && !stops.includes(this.peek())) items.push(this.scripted());
    this.depth -= 1;
    return math("mrow", {}, items);
  }

  scripted() {
    const isBig = this.peek()?.slice(1) in BIG && this.peek().startsWith("\\");
    const base = this.atom();
    let [sub, sup] = [null, null];
    for (;;) {
      if (this.peek() === "_" && !sub) sub = (this.next(), this.group());
      else if (this.peek() === "^" && !sup) sup = (this.next(), this.group());
      else if (this.peek() === "'" && !sup) sup = (this.next(), math("mo", {}, "′"));
      else break;
    }
    if (!sub && !sup) return base;
    const isIntegral = /[∫∬∮]/.test(base.textContent);
    const [one, two, both] = isBig && !isIntegral ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (sub && sup) return math(both, {}, base, sub, sup);
    return sub ? math(one, {}, base, sub) : math(two, {}, base, sup);
  }

  group() {
    if (this.peek() !== "{") return this.single();
    this.next();
    const found = this.row(["}"]);
    if (this.next() !== "}") this.fail("a brace is not closed");
    return found;
  }

  // An argument without braces is one token, and of a number only its first digit: \frac12 is a half.
  single() {
    const token = this.peek();
    if (!/^\d./.test(token || "")) return this.atom();
    this.tokens[this.place] = token.slice(1);
    return math("mn", {}, token[0]);
  }

  // The raw text of a group: {like this}
  text() {
    if (this.peek() !== "{") return this.next() || "";
    this.next();
    let [depth, text] = [1, ""];
    while (this.place < this.tokens.length) {
      const token = this.tokens[this.place];
      this.place += 1;
      if (token === "{") depth += 1;
      if (token === "}" && (depth -= 1) === 0) return text;
      text += token;
    }
    return this.fail("a brace is not closed");
  }

  atom() {
    if ((this.depth += 1) > MAX_DEPTH) this.fail("too deep");
    try {
      const token = this.peek();
      if (token === undefined) this.fail("something is missing");
      if (token === "{") return this.group();
      if (token === "}" || token === "&" || token === "^" || token === "_") this.fail(`unexpected ${token}`);
      this.next();
      if (token.startsWith("\\")) return this.command(token.slice(1));
      if (/^\d/.test(token)) return math("mn", {}, token);
      if (/^\p{L}/u.test(token)) return math("mi", {}, token);
      return math("mo", {}, token === "-" ? "−" : token);
    } finally {
      this.depth -= 1;
    }
  }

  command(name) {
    if (name === "frac" || name === "dfrac" || name === "tfrac") return math("mfrac", {}, this.group(), this.group());
    if (name === "binom") return math("mrow", {}, math("mo", {}, "("), math("mfrac", { linethickness: "0" }, this.group(), this.group()), math("mo", {}, ")"));
    if (name === "sqrt") return this.root();
    if (name === "boxed" || name === "fbox") return math("mrow", { class: "boxed" }, this.group());
    if (["text", "textbf", "mbox", "operatorname", "textrm", "textit"].includes(name)) return math("mtext", {}, this.text());
    if (name in FONTS) return this.font(name);
    if (name in ACCENTS) return math("mover", { accent: "true" }, this.group(), math("mo", {}, ACCENTS[name]));
    if (name === "overset" || name === "stackrel") return this.stacked("mover");
    if (name === "underset") return this.stacked("munder");
    if (name === "underbrace") return math("munder", {}, this.group(), math("mo", { stretchy: "true" }, "⏟"));
    if (name === "overbrace") return math("mover", {}, this.group(), math("mo", { stretchy: "true" }, "⏞"));
    if (name === "underline") return math("munder", {}, this.group(), math("mo", {}, "_"));
    if (name in BIG) return math("mo", {}, BIG[name]);
    if (FUNCTIONS.has(name)) return math("mi", {}, name);
    if (name === "pmod") return math("mrow", {}, math("mtext", {}, " (mod "), this.group(), math("mo", {}, ")"));
    if (name === "left" || name === "right") return this.fence();
    if (name === "begin") return this.environment();
    if (SPACES.has(name)) return math("mspace", { width: name === "quad" ? "1em" : name === "qquad" ? "2em" : "0.2em" });
    if (name in SYMBOLS) return math(/\p{L}/u.test(SYMBOLS[name]) ? "mi" : "mo", {}, SYMBOLS[name]);
    return this.fail(`\\${name} is not known`);
  }

  stacked(kind) {
    const small = this.group();
    return math(kind, {}, this.group(), small);
  }

  root() {
    if (this.peek() !== "[") return math("msqrt", {}, this.group());
    this.next();
    const degree = this.row(["]"]);
    this.next();
    return math("mroot", {}, this.group(), degree);
  }

  font(name) {
    const text = this.text();
    if (name === "mathbb" && DOUBLE[text]) return math("mi", {}, DOUBLE[text]);
    return math("mi", { mathvariant: FONTS[name] }, text.replace(/^\\/, ""));
  }

  fence() {
    const token = this.next() || "";
    return math("mo", { stretchy: "true" }, token === "." ? "" : token.startsWith("\\") ? SYMBOLS[token.slice(1)] || "" : token);
  }

  environment() {
    const name = this.text();
    if (!(name in MATRICES)) this.fail(`the environment ${name} is not known`);
    if (name === "array") this.text();
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(math("mtd", {}, this.row(["&", "\\\\", "\\end"])));
      const token = this.next();
      if (token === "\\\\") rows.push([]);
      else if (token === "\\end") break;
      else if (token !== "&") this.fail("an environment is not closed");
    }
    this.text();
    const [open, close] = MATRICES[name];
    const table = math("mtable", {}, rows.map((cells) => math("mtr", {}, cells)));
    return math("mrow", {}, open ? math("mo", { stretchy: "true" }, open) : null, table, close ? math("mo", { stretchy: "true" }, close) : null);
  }
}

// The formula as MathML, or null if it uses something else than the common subset.
export function latex(text, isBlock) {
  if (text.length > MAX_LENGTH) return null;
  try {
    const parser = new Parser(text);
    const row = parser.row([]);
    if (parser.peek() !== undefined) return null;
    return math("math", isBlock ? { display: "block" } : {}, row);
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}
