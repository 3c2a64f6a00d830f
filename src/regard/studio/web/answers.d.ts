// What the studio answers, as the pages read it (studio/views, studio/token_path, studio/answers).

export interface Station {
  width: number;
  values: number[][];
  norms: number[];
  largest: number;
}

export interface HeadWeights {
  heads: number;
  head: number;
  values: number[][];
  shades: number[][];
  formula: string;
}

export type Guess = [token: string, probability: number] | null;

export interface Path {
  stack: string;
  layer: number;
  stations: Record<string, Station>;
  weights: Record<string, HeadWeights>;
  words: Guess[][] | null;
  rows: [position: number, label: string][];
  ids: number[] | null;
  columns: [position: number, label: string][];
  count: number;
}

export interface Anatomy {
  source: string[];
  target: string[];
  shapes: Record<string, number[]>;
}

export interface Scores {
  width: number;
  scale: number;
  dots: number[][];
  bias: number[][] | null;
  visible: boolean[][];
  weights: number[][];
}

export interface Model {
  kind: string;
  family: string;
  task: string;
  medium: string | null;
  speaks: boolean;
  writes: boolean;
  mask: string | null;
  parameters: number;
  linear: string;
  examples: string[];
  stacks: Record<string, number>;
  layers: Record<string, string>;
  norms: Record<string, string>;
  formulas: Record<string, Record<string, string>>;
}

export interface Question {
  model: string;
  text: string;
  file?: string | null;
}
