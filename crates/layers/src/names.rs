//! The names that a module defines, imports and mentions.

use std::collections::HashSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItem, Item, Meta, TraitItem, UseTree, ext::IdentExt};

use crate::condition::is_for_tests;

/// One name that a `use` brings into scope.
#[derive(Debug)]
pub(crate) struct Import {
    /// The name in this module; `None` for `*`.
    pub(crate) name: Option<String>,
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

/// A path outside of `use`.
#[derive(Debug)]
pub(crate) struct Mention {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
    /// It is `path!`, which may be a macro in textual scope.
    pub(crate) is_macro: bool,
}

/// Every name of a module.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The items that the module defines itself.
    pub(crate) defined: HashSet<String>,
    /// Those of them that are macros.
    pub(crate) macros: HashSet<String>,
    pub(crate) imports: Vec<Import>,
    pub(crate) mentions: Vec<Mention>,
}

impl Names {
    /// Adds what `item` defines, imports and mentions.
    pub(crate) fn collect(&mut self, item: &Item) {
        if let Some(name) = defined_name(item) {
            if matches!(item, Item::Macro(_)) {
                self.macros.insert(name.clone());
            }
            self.defined.insert(name);
        }
        Collector { names: self }.visit_item(item);
    }
}

/// The attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn defined_name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.unraw().to_string())
}

struct Collector<'a> {
    names: &'a mut Names,
}

impl Collector<'_> {
    fn mention(&mut self, path: Vec<String>, line: usize, is_macro: bool) {
        self.names.mentions.push(Mention {
            path,
            line,
            is_macro,
        });
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let mut path = before.to_vec();
        let (name, ident) = match tree {
            UseTree::Path(part) => {
                path.push(part.ident.unraw().to_string());
                return self.import(&part.tree, &path);
            }
            UseTree::Group(group) => {
                for part in &group.items {
                    self.import(part, before);
                }
                return;
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.names.imports.push(Import {
                    name: None,
                    path,
                    line,
                });
                return;
            }
            UseTree::Name(part) => (&part.ident, &part.ident),
            UseTree::Rename(part) => (&part.rename, &part.ident),
        };
        // `use a::{self}` imports `a`.
        if ident != "self" || path.is_empty() {
            path.push(ident.unraw().to_string());
        }
        let name = if name == "self" {
            path.last().cloned()
        } else {
            Some(name.unraw().to_string())
        };
        self.names.imports.push(Import {
            name,
            path,
            line: ident.span().start().line,
        });
    }

    /// The arguments of a macro have no known grammar: takes every sequence that looks like a path.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let punctuation = |at: usize, wanted: char| matches!(tokens.get(at), Some(TokenTree::Punct(it)) if it.as_char() == wanted);
        let mut at = 0;
        while at < tokens.len() {
            let first = at;
            at += 1;
            match &tokens[first] {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(ident) => {
                    let line = ident.span().start().line;
                    let mut path = vec![ident.unraw().to_string()];
                    while punctuation(at, ':') && punctuation(at + 1, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 2) else {
                            break;
                        };
                        path.push(next.unraw().to_string());
                        at += 3;
                    }
                    let behind = |mark| first > 0 && punctuation(first - 1, mark);
                    let leading_colons = behind(':') && first > 1 && punctuation(first - 2, ':');
                    let variable = behind('$') && path[0] != "crate";
                    if !(behind('.') || behind('\'') || leading_colons || variable) {
                        let is_macro = punctuation(at, '!')
                            && matches!(tokens.get(at + 1), Some(TokenTree::Group(_)));
                        self.mention(path, line, is_macro);
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        // Modules inside of functions are rare and are not resolved.
        if !is_for_tests(attributes(item)) && !matches!(item, Item::Mod(_)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[]);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes: &[Attribute] = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes: &[Attribute] = match item {
            TraitItem::Const(item) => &item.attrs,
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            TraitItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_field_value(&mut self, value: &'ast syn::FieldValue) {
        if !is_for_tests(&value.attrs) {
            visit::visit_field_value(self, value);
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        if !is_for_tests(&variant.attrs) {
            visit::visit_variant(self, variant);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !is_for_tests(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_for_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        let attributes: &[Attribute] = match expression {
            Expr::Block(it) => &it.attrs,
            Expr::Call(it) => &it.attrs,
            Expr::If(it) => &it.attrs,
            Expr::MethodCall(it) => &it.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_expr(self, expression);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let (None, Some(first)) = (&path.leading_colon, path.segments.first()) {
            let line = first.ident.span().start().line;
            let names = path.segments.iter();
            self.mention(
                names.map(|it| it.ident.unraw().to_string()).collect(),
                line,
                false,
            );
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        if let Some(first) = called.path.segments.first() {
            let line = first.ident.span().start().line;
            let names = called.path.segments.iter();
            self.mention(
                names.map(|it| it.ident.unraw().to_string()).collect(),
                line,
                true,
            );
        }
        self.scan(called.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::List(list) => self.scan(list.tokens.clone()),
            Meta::NameValue(pair) => self.visit_expr(&pair.value),
            Meta::Path(_) => {}
        }
    }

    /// `pub(in path)` says who may use the item, not what the item uses.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}
